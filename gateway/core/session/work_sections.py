"""What a program knows of the work, below a model's summary: files changed and commands run.

A model leaves files out or changes their names. The two sections are made from the calls, and brought up to
date by the next summary. Knows texts and what `reader` found.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.core.digest.fact_list import (
    find_missing_facts,
    group_facts,
    parse_facts,
    split_fact_list,
    with_fact_list,
)
from gateway.core.digest.facts import is_secret
from gateway.core.history.message import Message
from gateway.core.history.transcript import UNKNOWN_ENTRY, TranscriptEntry, neutralize
from gateway.core.session.commands import may_change_files
from gateway.core.session.reader import SessionReader
from gateway.core.session.work import SessionWork, list_touched_files

FILES_HEADING: Final = "## Files changed (listed by a program)"
COMMANDS_HEADING: Final = "## Commands run (listed by a program)"
_ITEM: Final = "- "
# Of the room for all lists; what they leave is for names.
_FILES_SHARE: Final = 0.15
_COMMANDS_SHARE: Final = 0.12
_MOST_COMMANDS: Final = 5
# A longer command is a script.
_COMMAND_CHARS: Final = 160
# A file that no longer has room in its section goes to the list like one of so many mentions.
_FILE_TIMES: Final = 4
_EXIT: Final = " → exit "
_NEW: Final = " (new)"
_DELETED: Final = " (deleted)"
_ENDS: Final = {"created": _NEW, "deleted": _DELETED}


@dataclass(frozen=True, slots=True)
class ListedWork:
    """Files, with what happened to them, and commands, with how they ended; the newest last."""

    files: dict[str, str] = field(default_factory=dict)
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoldedHistory:
    """What a summary stands for. shown: messages that stay beside it."""

    messages: Sequence[Message]
    entries: Sequence[TranscriptEntry]
    earlier: str | None = None
    shown: Sequence[TranscriptEntry] = ()


def append_lists(summary: str, folded: FoldedHistory, cap_chars: int) -> str:
    """The summary with files, commands and names below it, in at most `cap_chars` more. Never raises."""
    text, copied = split_fact_list(summary)
    text, _ = split_work(text)
    old_text, old_facts = split_fact_list(folded.earlier or "")
    old_text, before = split_work(old_text)
    sections = render_work(merge_work(before, _read_work(folded)), cap_chars)
    listed = "\n\n".join(filter(None, (text.rstrip(), sections)))
    room = cap_chars - (len(sections) + 2 if sections else 0)
    known = spell_out_lists("\n\n".join([summary, sections]))
    earlier = with_fact_list(old_text, [*old_facts, *(f"{path} ×{_FILE_TIMES}" for path in before.files)])
    missing = find_missing_facts(folded.entries, earlier, known, room, folded.shown)
    if not sections and not missing:
        return summary
    return with_fact_list(listed, [*copied, *missing])


def spell_out_lists(summary: str) -> str:
    """A summary with each file and name on a line, with its folder: what a search for names looks at."""
    text, facts = split_fact_list(summary)
    text, work = split_work(text)
    return "\n".join([text, *work.files, *work.commands, *facts])


def split_work(text: str) -> tuple[str, ListedWork]:
    """A text without the sections at its end, and what they list."""
    text, commands = _split_section(text, COMMANDS_HEADING)
    text, lines = _split_section(text, FILES_HEADING)
    files: dict[str, str] = {}
    for fact in (fact for line in lines for fact in parse_facts(line)):
        end = next((end for end in _ENDS.values() if fact.endswith(end)), "")
        files[fact.removesuffix(end)] = end
    return text, ListedWork(files, tuple(commands))


def merge_work(before: ListedWork, work: SessionWork) -> ListedWork:
    """What earlier summaries listed, with what was done since."""
    files = dict(before.files)
    for touched in list_touched_files(work.changes):
        end = _ENDS.get(touched.kind, "")
        known = files.pop(touched.path, "")
        if _may_be_listed(touched.path) and ", " not in touched.path:
            files[touched.path] = known if known == _NEW and not end else end
    commands = {command.partition(_EXIT)[0]: command for command in before.commands}
    for run in work.commands:
        command = _render_command(run.command)
        if may_change_files(run.command) and _may_be_listed(command):
            commands.pop(command, None)
            commands[command] = command if run.exit_code is None else f"{command}{_EXIT}{run.exit_code}"
    return ListedWork(files, tuple(commands.values()))


def render_work(work: ListedWork, cap_chars: int) -> str:
    """Both sections, as far as there is room: the newest files and commands; empty if there is none."""
    files = _take_newest([path + end for path, end in work.files.items()], int(_FILES_SHARE * cap_chars))
    commands = _take_newest(work.commands[-_MOST_COMMANDS:], int(_COMMANDS_SHARE * cap_chars))
    sections = ((FILES_HEADING, group_facts(files)), (COMMANDS_HEADING, commands))
    return "\n\n".join(
        "\n".join([heading, *(_ITEM + line for line in lines)]) for heading, lines in sections if lines
    )


def _read_work(folded: FoldedHistory) -> SessionWork:
    reader = SessionReader(compares_lines=False)
    for position, (message, entry) in enumerate(zip(folded.messages, folded.entries, strict=True)):
        if entry is not UNKNOWN_ENTRY:
            reader.feed(position, message, entry)
    return reader.work()


def _split_section(text: str, heading: str) -> tuple[str, list[str]]:
    before, found, after = f"\n{text}".rpartition(f"\n{heading}\n")
    lines = [line for line in after.split("\n") if line]
    if not found or not all(line.startswith(_ITEM) for line in lines):
        return text, []
    return before.strip("\n"), [line.removeprefix(_ITEM) for line in lines]


def _take_newest(lines: Sequence[str], room: int) -> list[str]:
    """The last lines that fit, in their order. The heading counts, too."""
    taken: list[str] = []
    room -= len(COMMANDS_HEADING) + len("\n\n")
    for line in reversed(lines):
        room -= len(line) + len(f"\n{_ITEM}")
        if room < 0:
            break
        taken.append(line)
    return taken[::-1]


def _render_command(command: str) -> str:
    line = "".join(letter if letter.isprintable() else " " for letter in command[: 4 * _COMMAND_CHARS])
    line = " ".join(line.split()).replace(_EXIT, " ")
    return line if len(line) <= _COMMAND_CHARS else f"{line[: _COMMAND_CHARS - 1]}…"


def _may_be_listed(text: str) -> bool:
    """Whether it is one line that holds no key and cannot close a fence."""
    words: Iterable[str] = (text, *text.split())
    return (
        bool(text.strip())
        and text.isprintable()
        and neutralize(text) == text
        and not any(map(is_secret, words))
    )
