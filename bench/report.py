"""`docs/benchmarks.md`: what each part of the bench printed last, a section for each part."""

import contextlib
import io
import os
import platform
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO

REPORT: Final = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
_INTRODUCTION: Final = """\
# Benchmarks

Written by `python -m bench --write`. The machines are shared and noisy, so every figure of speed is a ratio
to a bare aiohttp pass-through in the same run. The gateway is one process on uvloop, but for `scale`.
"""


class _Copy(io.StringIO):
    """Keeps what it passes on."""

    def __init__(self, screen: TextIO) -> None:
        super().__init__()
        self._screen = screen

    def write(self, text: str) -> int:
        self._screen.write(text)
        return super().write(text)


@contextlib.contextmanager
def written_to_report(part: str, path: Path = REPORT) -> Iterator[None]:
    """What is printed meanwhile replaces the section of that part, and still appears on the screen."""
    with contextlib.redirect_stdout(_Copy(sys.stdout)) as printed:
        yield
    old = path.read_text("utf-8") if path.exists() else _INTRODUCTION
    path.write_text(with_section(old, part, render_section(part, printed.getvalue())), "utf-8")


def render_section(part: str, printed: str) -> str:
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, {datetime.now(UTC):%Y-%m-%d}"
    return f"## {part}\n\n`python -m bench {part}`, {machine}\n\n```\n{printed.strip(chr(10))}\n```\n"


def with_section(report: str, part: str, section: str) -> str:
    """The report with this section in the place of the part's old one, or at the end."""
    old = re.search(rf"^## {re.escape(part)}\n.*?(?=^## |\Z)", report, re.MULTILINE | re.DOTALL)
    if old is None:
        return f"{report.rstrip()}\n\n{section}"
    return f"{report[: old.start()]}{section}{_space(report[old.end() :])}"


def _space(rest: str) -> str:
    return f"\n{rest}" if rest else ""
