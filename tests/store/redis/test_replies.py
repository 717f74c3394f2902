"""What refusals of a server mean."""

import pytest
from redis.exceptions import (
    BusyLoadingError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from gateway.store.redis.replies import ENDING, RefusalKind, ServerRefusal, translate


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OutOfMemoryError("command not allowed"), RefusalKind.FULL),
        (ReadOnlyError("You can't write"), RefusalKind.READ_ONLY),
        (MasterDownError("ServerLink with MASTER is down"), RefusalKind.NO_PRIMARY),
        (MovedError("1 127.0.0.1:1"), RefusalKind.CLUSTER),
        (NoPermissionError("no permissions"), RefusalKind.DENIED),
        (BusyLoadingError("loading"), RefusalKind.BUSY),
        (ResponseError("WRONGTYPE Operation against a key"), RefusalKind.WRONG_TYPE),
        (ResponseError("MISCONF Redis is configured to save"), RefusalKind.CANNOT_SAVE),
        (ResponseError("BUSY Redis is busy"), RefusalKind.BUSY),
        (ResponseError("ERR unknown command 'X', with args beginning with: 'sk-1'"), RefusalKind.OTHER),
    ],
)
def test_a_refusal_keeps_its_kind_and_none_of_its_text(error: RedisError, kind: RefusalKind) -> None:
    assert translate(error) == ServerRefusal(kind)


def test_a_full_server_still_answers_and_a_replica_does_not_do() -> None:
    assert RefusalKind.FULL not in ENDING and RefusalKind.READ_ONLY in ENDING
