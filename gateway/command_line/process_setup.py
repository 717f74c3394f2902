"""What every process of a running gateway sets up for itself: its log, its limits, and its end."""

import json
import logging
import os
import signal
import sys
import threading
import time
from types import TracebackType
from typing import Final

from gateway.bounds.process import raise_limit, return_freed_memory
from gateway.logs.fields import FIELDS
from gateway.settings import Log, Settings, list_warnings


def make_text_formatter(process: str) -> logging.Formatter:
    """process: its name in each line; empty for the only process of a gateway."""
    words = ("%(asctime)s", *([process] if process else []), "%(levelname)s", "%(name)s", "%(message)s")
    return logging.Formatter(" ".join(words))


class JsonFormatter(logging.Formatter):
    """Each line is one line in JSON, whatever it holds. Times are of UTC, with milliseconds. The named
    values of a line are beside its text. process: as above.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._named = {"process": process} if process else {}

    def format(self, record: logging.LogRecord) -> str:
        own = {
            "time": _render_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._named,
            "message": record.getMessage(),
        }
        if record.exc_info:
            own["exception"] = self.formatException(record.exc_info)
        # In this order. Escapes everything that is not ASCII: line ends of other alphabets, and halves of
        # characters.
        return json.dumps(own | vars(record).get(FIELDS, {}) | own)


def _render_time(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1_000):03}Z"


_log: Final = logging.getLogger("gateway")

# Time to write what is queued after a second signal.
HURRY_SECONDS: Final = 0.7


def open_standard_streams() -> None:
    """Before anything else is opened: a socket with the number of a closed stream would be taken for it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The system gives the lowest free number. Workers inherit it.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def set_up_process(log: Log, name: str = "") -> None:
    """name: that of the process in its log lines, where a gateway has several."""
    set_up_logging(log, name)
    raise_limit()
    return_freed_memory()


def set_up_logging(log: Log, name: str = "") -> None:
    """For the gateway's own loggers: at `debug`, libraries log headers, and so keys. May be called again."""
    logging.basicConfig(level=max(logging.INFO, _number(log.level)), stream=sys.stderr)
    is_json = log.format == "json"
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonFormatter(name) if is_json else make_text_formatter(name))
    logging.getLogger().setLevel(max(logging.INFO, _number(log.level)))
    logging.getLogger("gateway").setLevel(_number(log.level))
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    # A line that is no JSON would be lost to a program that reads the log.
    sys.excepthook = _log_uncaught if is_json else sys.__excepthook__
    threading.excepthook = _log_uncaught_in_thread if is_json else threading.__excepthook__


def logs_json() -> bool:
    """Whether every line on standard error has to be JSON."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def complain(text: str, beginning: str = "gateway: ") -> None:
    """To a person, or to the log if a program reads it."""
    if logs_json():
        _log.error("cannot serve: %s", text)
    else:
        print(f"{beginning}{text}", file=sys.stderr)


def warn(settings: Settings) -> None:
    """Of what is allowed, but hardly meant: a person, or the log if a program reads it."""
    for warning in list_warnings(settings):
        if logs_json():
            _log.warning("settings: %s", warning)
        else:
            print(f"warning: {warning}", file=sys.stderr)


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    _log.critical("uncaught error", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is not None:
        _log.critical("uncaught error", exc_info=(failed.exc_type, failed.exc_value, failed.exc_traceback))


def end_within(seconds: float) -> None:
    """The system ends the process then, even if the event loop is busy."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
