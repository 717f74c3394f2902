"""What a program lists below a summary: files changed and commands run, made from the calls, and names.

A model leaves files out or changes their names. Each compaction goes on from the lists of the one before.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from gateway.core.digest.facts import LONGEST_FACT_CHARS, is_secret
from gateway.core.digest.names import choose_names, has_word, may_be_listed
from gateway.core.history.lists import (
    COMMANDS_HEADING,
    FILES_HEADING,
    ITEM,
    NAMES_HEADING,
    NOTHING_TOLD,
    TODO,
    ListedCommand,
    ListedFile,
    Lists,
    Told,
    render_lists,
)
from gateway.core.history.message import Message
from gateway.core.history.transcript import UNKNOWN_ENTRY, TranscriptEntry, neutralize
from gateway.core.session.commands import may_change_files
from gateway.core.session.file_changes import WrittenFiles
from gateway.core.session.reader import SessionReader
from gateway.core.session.work import OpenTodo, Session

# Of the room for all lists; what they leave is for names.
_FILES_SHARE: Final = 0.15
_COMMANDS_SHARE: Final = 0.12
_MOST_COMMANDS: Final = 5
# Of what files and commands leave; the rest is for names.
_TODO_SHARE: Final = 0.25
# A longer command is a script.
_COMMAND_CHARS: Final = 160

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FoldedHistory:
    """What a summary stands for. before: what it replaces together with the messages. shown: messages that
    stay beside it.
    """

    messages: Sequence[Message]
    entries: Sequence[TranscriptEntry]
    before: Told = NOTHING_TOLD
    shown: Sequence[TranscriptEntry] = ()


def make_lists(summary: str, folded: FoldedHistory, cap_chars: int) -> Lists:
    """What is listed below this summary, in at most `cap_chars` more. Never raises."""
    work, before = _read_work(folded), folded.before.lists
    shown = "\n".join(text for entry in folded.shown for text in _list_shown(entry))
    newest = reversed(_merge_files(before.files, work))
    files = _take(newest, int(_FILES_SHARE * cap_chars), FILES_HEADING)[::-1]
    run = _merge_commands(before.commands, work)[: -_MOST_COMMANDS - 1 : -1]
    commands = _take(run, int(_COMMANDS_SHARE * cap_chars), COMMANDS_HEADING)[::-1]
    spelled = Told(summary, Lists(files=files, commands=commands)).spelled_out
    room = cap_chars - _measure(Lists(files=files, commands=commands))
    open_todos = [line for line in _list_todos(work) if not has_word(f"{spelled}\n{shown}", line)]
    todos = _take(open_todos, int(_TODO_SHARE * room), NAMES_HEADING)
    lists = Lists(files=files, commands=commands, todos=todos)
    names = choose_names(folded.entries, folded.before, spelled, cap_chars - _measure(lists), shown)
    return replace(lists, names=names)


def _measure(lists: Lists) -> int:
    """Characters below a summary."""
    rendered = render_lists(lists)
    return len(f"\n\n{rendered}") if rendered else 0


def _read_work(folded: FoldedHistory) -> Session:
    before = Session(todos=tuple(OpenTodo(text=text) for text in folded.before.lists.todos))
    reader = SessionReader(before, WrittenFiles(left_steps=0))
    for position, (message, entry) in enumerate(zip(folded.messages, folded.entries, strict=True)):
        if entry is not UNKNOWN_ENTRY:
            reader.feed(position, message, entry)
    work = reader.session()
    # What is done with a task is told by its id, which no list keeps.
    return replace(work, todos=tuple(todo for todo in work.todos if not todo.task))


def _merge_files(before: Iterable[ListedFile], work: Session) -> list[ListedFile]:
    """Each once, at its last change. A file that is created and changed is a new one."""
    files = {file.path: file for file in before}
    for touched in work.files:
        known = files.pop(touched.path, None)
        if _is_line(touched.path) and ", " not in touched.path:
            kind = touched.kind if touched.kind in ("created", "deleted") else "changed"
            is_new = kind == "changed" and known is not None and known.kind == "created"
            files[touched.path] = ListedFile(touched.path, "created" if is_new else kind)
    return list(files.values())


def _merge_commands(before: Iterable[ListedCommand], work: Session) -> list[ListedCommand]:
    """Those that do more than read; each once, at its last run."""
    commands = {command.text: command for command in before}
    for run in work.commands:
        text = _render_line(run.command, _COMMAND_CHARS)
        if may_change_files(run.command) and _is_line(text):
            commands.pop(text, None)
            commands[text] = ListedCommand(text, run.exit_code)
    return list(commands.values())


def _take(listed: Iterable[T], room: int, heading: str) -> tuple[T, ...]:
    """The first ones that fit below their heading."""
    taken: list[T] = []
    room -= len(f"\n\n{heading}")
    for each in listed:
        room -= len(f"\n{ITEM}{each}")
        if room < 0:
            break
        taken.append(each)
    return tuple(taken)


def _list_todos(work: Session) -> list[str]:
    """Open items that may be listed, each on one line."""
    longest = LONGEST_FACT_CHARS - len(TODO)
    lines = dict.fromkeys(neutralize(_render_line(todo.text, longest)) for todo in work.todos)
    return list(filter(_is_line, lines))


def _list_shown(entry: TranscriptEntry) -> Iterator[str]:
    for each in (entry, *entry.more):
        yield each.text
        for _, arguments in each.calls:
            yield arguments


def _render_line(text: str, longest: int) -> str:
    line = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * longest])
    line = " ".join(line.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _is_line(text: str) -> bool:
    """Whether it is one line that may be repeated, and no word of it is a key."""
    return (
        bool(text.strip())
        and text.isprintable()
        and may_be_listed(text)
        and not any(map(is_secret, text.split()))
    )
