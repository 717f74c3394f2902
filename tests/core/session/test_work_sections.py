"""What is listed below a summary: files, commands and names."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.digest.fact_list import HEADING
from gateway.core.history.message import Call, Message
from gateway.core.history.transcript import TranscriptEntry
from gateway.core.session.work import CommandRun, FileChange, SessionWork
from gateway.core.session.work_sections import (
    COMMANDS_HEADING,
    FILES_HEADING,
    FoldedHistory,
    ListedWork,
    append_lists,
    merge_work,
    render_work,
    spell_out_lists,
    split_work,
)

_PLENTY = 4_000


def change(path: str, kind: Any = "changed") -> FileChange:
    return FileChange(position=1, path=path, kind=kind, additions=1, deletions=0)


def run(command: str, exit_code: int | None = None) -> CommandRun:
    return CommandRun(position=1, command=command, exit_code=exit_code)


def exchange(tool: str, said: str, **arguments: Any) -> FoldedHistory:
    """One call and its result."""
    messages = [
        Message("assistant", b"", b"", 0, calls=(Call("1", tool),)),
        Message("tool", b"", b"", 0, results=("1",)),
    ]
    entries = [
        TranscriptEntry("assistant", "", ((tool, json.dumps(arguments)),), 0),
        TranscriptEntry("tool", said, (), 0, is_result=True),
    ]
    return FoldedHistory(messages, entries)


def test_files_and_commands_stand_between_the_summary_and_the_list() -> None:
    edited = exchange(
        "Edit", "The file has been updated.", file_path="/w/a.py", old_string="x", new_string="total_sum"
    )
    first = append_lists("We worked.", edited, _PLENTY)
    assert first == f"We worked.\n\n{FILES_HEADING}\n- /w/a.py\n\n{HEADING}\n- total_sum"
    ran = exchange("Bash", "Exit code 2\nE4711", command="make  test")
    later = append_lists("It fails.", FoldedHistory(ran.messages, ran.entries, first), _PLENTY)
    assert later.split("\n\n") == [
        "It fails.",
        f"{FILES_HEADING}\n- /w/a.py",
        f"{COMMANDS_HEADING}\n- make test → exit 2",
        f"{HEADING}\n- E4711, total_sum",
    ]
    assert spell_out_lists(later).splitlines() == [
        "It fails.",
        "/w/a.py",
        "make test → exit 2",
        "E4711",
        "total_sum",
    ]


def test_sections_that_the_model_copied_are_not_doubled() -> None:
    edited = exchange(
        "Edit", "The file has been updated.", file_path="/w/a.py", old_string="x", new_string="y"
    )
    first = append_lists("We worked.", edited, _PLENTY)
    again = append_lists(first, FoldedHistory((), (), first), _PLENTY)
    assert again.count(FILES_HEADING) == 1 and again.count("/w/a.py") == 1


def test_what_happened_to_a_file_is_brought_up_to_date() -> None:
    before = ListedWork({"/w/new.py": " (new)", "/w/old.py": "", "/w/back.py": " (deleted)"}, ())
    work = SessionWork(
        changes=(change("/w/new.py"), change("/w/old.py", "deleted"), change("/w/back.py", "created"))
    )
    merged = merge_work(before, work)
    assert merged.files == {"/w/new.py": " (new)", "/w/old.py": " (deleted)", "/w/back.py": " (new)"}
    assert split_work(f"Text.\n\n{render_work(merged, _PLENTY)}")[1].files == merged.files


def test_commands_that_only_read_or_hold_keys_are_left_out_and_repeats_stand_at_their_last_place() -> None:
    commands = (run("make"), run("ls -la"), run("deploy --token=abcdef123"), run("pytest", 1), run("make", 0))
    merged = merge_work(ListedWork(commands=("make → exit 2", "tox")), SessionWork(commands=commands))
    assert merged.commands == ("tox", "pytest → exit 1", "make → exit 0")


def test_the_newest_are_listed_where_there_is_no_room_for_all() -> None:
    work = ListedWork({f"/w/{number}/file.py": "" for number in range(90)}, ())
    rendered = render_work(work, 1_000)
    assert len(rendered) <= 250 and "/w/89/file.py" in rendered and "/w/1/file.py" not in rendered
    assert render_work(work, 100) == ""


_TEXTS = st.lists(
    st.sampled_from(
        [
            FILES_HEADING,
            COMMANDS_HEADING,
            HEADING,
            "\n",
            "- ",
            "a/b.py",
            ": ",
            ", ",
            " (new)",
            " → exit 1",
            "x",
        ]
    ),
    max_size=20,
).map("".join)


@given(_TEXTS, _TEXTS, st.integers(0, 500))
def test_no_text_breaks_the_lists(summary: str, earlier: str, cap_chars: int) -> None:
    history = FoldedHistory((), (), earlier)
    listed = append_lists(summary, history, cap_chars)
    assert len(listed) <= len(summary) + cap_chars + len("\n\n")
    assert append_lists(summary, history, cap_chars) == listed
