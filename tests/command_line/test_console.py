"""How commands print."""

import io
import json
import sys

import pytest
from rich.text import Text

from gateway.command_line.console import make_console, make_printable, render_json


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show(stream: io.StringIO, env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    console = make_console(env=env)
    console.print(Text("word", style="red"), "[bold]as it is[/bold]")
    return stream.getvalue()


def test_a_pipe_gets_no_colour_and_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert make_console(env={}).width == 80
    assert "\x1b" not in show(io.StringIO(), {}, monkeypatch)


def test_a_terminal_gets_colour_unless_it_wants_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[31mword" in show(Terminal(), {}, monkeypatch)
    assert "\x1b[31m" not in show(Terminal(), {"NO_COLOR": "1"}, monkeypatch)


def test_text_is_never_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "[bold]as it is[/bold]" in show(io.StringIO(), {}, monkeypatch)


def test_what_a_terminal_would_obey_is_not_shown() -> None:
    assert make_printable("a\x1b[2Jb\nc") == "a�[2Jb�c"


def test_json_is_one_value() -> None:
    assert json.loads(render_json({"a": [1, None, "ü"]})) == {"a": [1, None, "ü"]}
