"""What a search found, for a person."""

from io import StringIO

from rich.console import Console

from gateway.admin.answers import FoundPart, SearchPage
from gateway.command_line.found_pieces import show_found


def _part(text: str, conversation: str = "abc", tool: str | None = None) -> FoundPart:
    return FoundPart(
        conversation=conversation,
        position=12,
        role="tool" if tool else "user",
        tool=tool,
        path="/src/a.py" if tool else None,
        start=0,
        end=len(text),
        when="2026-11-23T11:00:00+00:00",
        text=text,
    )


def _show(*found: FoundPart) -> str:
    out = StringIO()
    show_found(Console(file=out, width=80), SearchPage(id="abc", found=list(found)))
    return out.getvalue()


def test_each_piece_stands_under_its_place() -> None:
    shown = _show(_part("Fix it.\nNow."), _part("def f(): ...", "parent", "read_file"))
    assert "message 12: user; characters 0 to 12; taken out " in shown
    assert "Fix it.\nNow.\n\nmessage 12 of parent: tool, read_file, /src/a.py; " in shown


def test_no_text_can_command_the_terminal() -> None:
    shown = _show(_part("a\x1b[2Jb\x07", tool="x\x1b"))
    assert "\x1b" not in shown and "\x07" not in shown
    assert "a�[2Jb�" in shown


def test_nothing_found_is_said() -> None:
    assert _show() == "nothing found in the messages that were summarized or pruned\n"
