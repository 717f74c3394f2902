"""Log lines as text or as JSON. Each is one line in JSON, whatever it holds.

What a line says is for those who log; they never pass content of a conversation, a query or a key.
"""

import json
import logging
import time
from typing import Final

from gateway.logs.fields import FIELDS

# In the order of a line. `process` only where a gateway has several.
TIME, LEVEL, LOGGER, PROCESS, MESSAGE, EXCEPTION = (
    "time",
    "level",
    "logger",
    "process",
    "message",
    "exception",
)
_OWN: Final = frozenset({TIME, LEVEL, LOGGER, PROCESS, MESSAGE, EXCEPTION})


def make_text_formatter(process: str) -> logging.Formatter:
    """process: its name in each line; empty for the only process of a gateway."""
    words = ("%(asctime)s", *([process] if process else []), "%(levelname)s", "%(name)s", "%(message)s")
    return logging.Formatter(" ".join(words))


class JsonFormatter(logging.Formatter):
    """Times are of UTC, with milliseconds. The named values of a line are beside its text."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._named = {PROCESS: process} if process else {}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            TIME: _render_time(record.created),
            LEVEL: record.levelname.lower(),
            LOGGER: record.name,
            **self._named,
            MESSAGE: record.getMessage(),
        }
        fields = vars(record).get(FIELDS, {})
        line.update((name, value) for name, value in fields.items() if name not in _OWN)
        if record.exc_info:
            line[EXCEPTION] = self.formatException(record.exc_info)
        # Escapes everything that is not ASCII: line ends of other alphabets, and halves of characters.
        return json.dumps(line)


def _render_time(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1_000):03}Z"
