"""What a program tells of replaced messages: the lists below a summary, and a digest in place of one.

Files changed and commands run are made from the calls, because a model leaves files out or changes their
names; each compaction goes on from the lists of the one before. A digest only quotes. The same messages give
the same digest; an earlier summary is quoted, and a digest whose messages are gone is continued by what it
holds.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

from gateway.core.digest.facts import LONGEST_FACT_CHARS, is_secret
from gateway.core.digest.names import choose_names, has_word, may_be_listed
from gateway.core.history.lists import (
    COMMANDS_HEADING,
    DIGEST_HEAD,
    FILES_HEADING,
    ITEM,
    NAMES_HEADING,
    NOTHING_TOLD,
    SAID_HEADING,
    TODO,
    ListedCommand,
    ListedFile,
    Lists,
    Told,
    render_lists,
)
from gateway.core.history.message import Message
from gateway.core.history.transcript import (
    UNKNOWN_ENTRY,
    TranscriptEntry,
    cut_middle,
    list_entries,
    neutralize,
)
from gateway.core.session.commands import may_change_files
from gateway.core.session.file_changes import WrittenFiles
from gateway.core.session.reader import SessionReader
from gateway.core.session.work import OpenTodo, SessionWork

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
    entries = list_entries(folded.shown)
    shown = "\n".join(text for each in entries for text in (each.text, *(said for _, said in each.calls)))
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


def _read_work(folded: FoldedHistory) -> SessionWork:
    before = SessionWork(todos=tuple(OpenTodo(text=text) for text in folded.before.lists.todos))
    reader = SessionReader(before, WrittenFiles(left_steps=0))
    for position, (message, entry) in enumerate(zip(folded.messages, folded.entries, strict=True)):
        if entry is not UNKNOWN_ENTRY:
            reader.feed(position, message, entry)
    work = reader.work()
    # What is done with a task is told by its id, which no list keeps.
    return replace(work, todos=tuple(todo for todo in work.todos if not todo.task))


def _merge_files(before: Iterable[ListedFile], work: SessionWork) -> list[ListedFile]:
    """Each once, at its last change. A file that is created and changed is a new one."""
    files = {file.path: file for file in before}
    for touched in work.files:
        known = files.pop(touched.path, None)
        if _is_line(touched.path) and ", " not in touched.path:
            kind = touched.kind if touched.kind in ("created", "deleted") else "changed"
            is_new = kind == "changed" and known is not None and known.kind == "created"
            files[touched.path] = ListedFile(touched.path, "created" if is_new else kind)
    return list(files.values())


def _merge_commands(before: Iterable[ListedCommand], work: SessionWork) -> list[ListedCommand]:
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


def _list_todos(work: SessionWork) -> list[str]:
    """Open items that may be listed, each on one line."""
    longest = LONGEST_FACT_CHARS - len(TODO)
    lines = dict.fromkeys(neutralize(_render_line(todo.text, longest)) for todo in work.todos)
    return list(filter(_is_line, lines))


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


# Digests

# A smaller digest has no room for its head and the first request.
MIN_DIGEST_CHARS: Final = 400

_Section = Literal["earlier", "asked", "said"]
# What the user wants and where the work stands are needed to continue; files and commands can be found again.
_WEIGHTS: Final[Mapping[_Section, int]] = {"asked": 30, "earlier": 25, "said": 20}
# Of the room; the rest is for quoted texts.
_LISTS_SHARE: Final = 0.3
# Older texts of the model tell how the work got there, not where it stands.
_LAST_TEXTS: Final = 8
_ROLE_LABELS: Final = {"user": "", "system": "[system] ", "developer": "[developer] "}
_INDENT: Final = "  "
# A text gets at least so much, while there is so much; shorter parts of texts say nothing.
_MIN_CHARS: Final = 120
_SHORTEST_CHARS: Final = 50
# In a smaller room the long note would take too much of it.
_SHORT_CHARS: Final = 160
_SHORT_NOTE: Final = " … "
# The longest heading of a section, with the lines around it.
_HEADING_CHARS: Final = len(f"\n\n{SAID_HEADING}")
_LEFT_OUT_CHARS: Final = len("\n- [999999999 more left out]")
# Of a longer text both ends are read.
_READ_CHARS: Final = 100_000
# JSON may contain a lone surrogate, which cannot be encoded.
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def make_digest(folded: FoldedHistory, max_chars: int) -> Told:
    """At most `max_chars` characters, or MIN_DIGEST_CHARS if that is more. Never raises."""
    room = max(max_chars, MIN_DIGEST_CHARS) - len(DIGEST_HEAD)
    lists_room = int(_LISTS_SHARE * room)
    quoted = Told(DIGEST_HEAD, _quote_texts(folded, room - lists_room))
    listed = make_lists(quoted.spelled_out, folded, lists_room)
    texts = quoted.lists
    return Told(
        DIGEST_HEAD,
        replace(listed, earlier=texts.earlier, asked=texts.asked, said=texts.said, left_out=texts.left_out),
    )


def _quote_texts(folded: FoldedHistory, room: int) -> Lists:
    before, entries = folded.before, list_entries(folded.entries)
    old = before.lists
    earlier = old.earlier if before.summary == DIGEST_HEAD else _quote(before.summary)
    said = [entry.text for entry in entries if entry.role == "assistant" and entry.text.strip()]
    texts: dict[_Section, list[str]] = {
        "earlier": [earlier] if earlier else [],
        "asked": _order_asked([*old.asked, *map(_quote, filter(None, map(_find_asked, entries)))]),
        "said": [*old.said, *map(_quote, said[-_LAST_TEXTS:])][-_LAST_TEXTS:],
    }
    needs = {title: _HEADING_CHARS + _count(found) for title, found in texts.items() if found}
    room -= _LEFT_OUT_CHARS
    fitted = {
        title: _fit(texts[title], share - _HEADING_CHARS, is_first_kept=title == "asked")
        for title, share in _divide(needs, room).items()
    }
    asked = fitted.get("asked", ())
    return Lists(
        earlier=next(iter(fitted.get("earlier", ())), ""),
        asked=asked,
        said=fitted.get("said", ()),
        left_out=old.left_out + len(texts["asked"]) - len(asked),
    )


def _find_asked(entry: TranscriptEntry) -> str:
    """The text of a user or of an instruction; empty for any other entry."""
    if entry.is_result or entry.role not in _ROLE_LABELS:
        return ""
    media = f"[{entry.media} attachments left out]" if entry.media else ""
    text = "\n".join(filter(None, (entry.text.strip(), media)))
    return _ROLE_LABELS[entry.role] + text if text else ""


def _order_asked(asked: Sequence[str]) -> list[str]:
    """The first request of a user, then everything else, including instructions before it; each once, at its
    last position.
    """
    labels = tuple(label for label in _ROLE_LABELS.values() if label)
    first = next((text for text in asked if not text.startswith(labels)), None)
    others = [text for text in dict.fromkeys(reversed(asked)) if text != first][::-1]
    return others if first is None else [first, *others]


def _quote(text: str) -> str:
    """The text as an item: no line of it looks like a heading, and nothing in it closes a fence."""
    safe = neutralize(_SURROGATE.sub("\ufffd", cut_middle(text, _READ_CHARS))).strip()
    return "\n".join(_INDENT + line if line.strip() else "" for line in safe.splitlines()).strip()


def _divide(needs: Mapping[_Section, int], room: int) -> dict[_Section, int]:
    """What each section gets: what it needs, or by weight its share of what those that need less leave."""
    shares: dict[_Section, int] = {}
    weights = sum(_WEIGHTS[section] for section in needs)
    for section in sorted(needs, key=lambda each: needs[each] / _WEIGHTS[each]):
        shares[section] = min(needs[section], room * _WEIGHTS[section] // weights)
        room -= shares[section]
        weights -= _WEIGHTS[section]
    return shares


def _count(texts: Sequence[str]) -> int:
    return sum(len(f"\n{ITEM}{text}") for text in texts)


def _fit(texts: Sequence[str], room: int, *, is_first_kept: bool) -> tuple[str, ...]:
    """All texts, or the newest ones, in their order. Each gets a third of what is left, or what all that are
    older leave, and is cut in the middle if it is longer. The first one, if it is kept, comes before all
    others.
    """
    rest = _count(texts)
    if rest <= room:
        return tuple(texts)
    newest = range(len(texts) - 1, -1, -1)
    kept: dict[int, str] = {}
    for at in [0, *newest[:-1]] if is_first_kept else newest:
        rest -= _count(texts[at : at + 1])
        most = max(room // 3, room - rest, min(room, _MIN_CHARS)) - len(f"\n{ITEM}")
        if most < min(len(texts[at]), _SHORTEST_CHARS):
            break
        kept[at] = _cut(texts[at], most)
        room -= _count([kept[at]])
    return tuple(kept[at] for at in sorted(kept))


def _cut(quoted: str, room: int) -> str:
    """Head and tail of a quoted text, and its length."""
    if len(quoted) <= room:
        return quoted
    note = f"\n{_INDENT}[... cut; {len(quoted)} characters in all ...]\n{_INDENT}"
    if room < _SHORT_CHARS:
        note = _SHORT_NOTE
    keep = room - len(note)
    tail = keep // 3
    # The cut may produce the beginning of a fence.
    head = neutralize(quoted[: keep - tail].rstrip())[: keep - tail]
    # Its first line may be cut anywhere: it stands behind our note.
    return head + note + quoted[-tail:].lstrip()
