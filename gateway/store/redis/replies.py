"""What a server answers, and what its refusals mean. Refusals are values: one command of many may fail.

Their texts may hold keys, so only the kind is kept.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Union

from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)


class RefusalKind(Enum):
    """The value is for the log."""

    AWAY = "it does not answer"
    NO_SCRIPT = "it does not know the script"
    WRONG_TYPE = "a key has another type"
    FULL = "its memory is full"
    CANNOT_SAVE = "it cannot save to its disk, or has too few replicas"
    READ_ONLY = "it is a read-only replica"
    NO_PRIMARY = "its primary or its cluster is down"
    BUSY = "it is busy with a script, or loads its data"
    NO_LOGIN = "it does not accept user and password"
    CLUSTER = "it is a node of a cluster"
    DENIED = "its ACL lacks a permission"
    OTHER = "it refused a command"


@dataclass(frozen=True)
class ServerRefusal:
    kind: RefusalKind


AWAY: Final = ServerRefusal(RefusalKind.AWAY)
# After these no command has a chance on the same connection.
ENDING: Final = frozenset(
    {
        RefusalKind.READ_ONLY,
        RefusalKind.NO_PRIMARY,
        RefusalKind.BUSY,
        RefusalKind.NO_LOGIN,
        RefusalKind.CLUSTER,
    }
)
# With these, trying again changes nothing.
FINAL: Final = frozenset({RefusalKind.NO_LOGIN, RefusalKind.DENIED, RefusalKind.CLUSTER})

Reply = Union[bytes, int, None, ServerRefusal, "list[Reply]"]
_CLASSES: Final = (
    (NoScriptError, RefusalKind.NO_SCRIPT),
    (OutOfMemoryError, RefusalKind.FULL),
    (ReadOnlyError, RefusalKind.READ_ONLY),
    (MasterDownError, RefusalKind.NO_PRIMARY),
    (ClusterDownError, RefusalKind.NO_PRIMARY),
    (AskError, RefusalKind.CLUSTER),  # MOVED is one, too
    (NoPermissionError, RefusalKind.DENIED),
    (AuthenticationError, RefusalKind.NO_LOGIN),
    (BusyLoadingError, RefusalKind.BUSY),
)
_CODES: Final = {
    "WRONGTYPE": RefusalKind.WRONG_TYPE,
    "MISCONF": RefusalKind.CANNOT_SAVE,
    "NOREPLICAS": RefusalKind.CANNOT_SAVE,
    "BUSY": RefusalKind.BUSY,
}


def translate(error: RedisError) -> ServerRefusal:
    """By the class that the library gives an error, else by the code that its text begins with."""
    for known, kind in _CLASSES:
        if isinstance(error, known):
            return ServerRefusal(kind)
    return ServerRefusal(_CODES.get(str(error).partition(" ")[0], RefusalKind.OTHER))
