"""The logger that is handed to the HTTP library. It keeps keys out of the log.

The library's errors quote the header line that it could not read, and such a line may hold a key.
"""

import logging


def make_library_log() -> logging.Logger:
    """Logs the class of an error, and nothing of its text."""
    log = logging.getLogger("gateway.http")
    if not log.filters:
        log.addFilter(_without_text)
    return log


def _without_text(record: logging.LogRecord) -> bool:
    kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else "error"
    record.msg, record.args = "%s on a connection", (kind,)
    record.exc_info = record.exc_text = None
    return True
