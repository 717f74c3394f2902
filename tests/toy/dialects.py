"""The three wire formats by the path that a request is sent to."""

from tests.toy.chat import CHAT
from tests.toy.dialect import Dialect
from tests.toy.messages import MESSAGES
from tests.toy.responses import RESPONSES

DIALECTS: tuple[Dialect, ...] = (CHAT, RESPONSES, MESSAGES)


def find_dialect(path: str) -> Dialect | None:
    """By the path's end, so that it may stand behind any base URL; a query does not matter."""
    bare = path.partition("?")[0]
    return next((dialect for dialect in DIALECTS if bare.endswith(dialect.path)), None)
