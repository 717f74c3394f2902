"""Facts that must survive a summary: those that the replaced messages mention and the summary does not.

They are listed below the summary, word for word, files grouped by their folders, and passed on from list to
list. Knows messages and texts; `fact_ranking` says which facts are needed most.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from gateway.core.digest.excerpt import parse_left_out
from gateway.core.digest.fact_ranking import TODO, find_said_facts, rank_facts
from gateway.core.digest.facts import LONGEST_FACT_CHARS
from gateway.core.history.transcript import TranscriptEntry

# The next compaction finds the list by this line, which is followed by items only.
HEADING: Final = "## Names, word for word (listed by a program; ×n: in n messages)"
# Lists of earlier versions are continued, too.
_HEADINGS: Final = (HEADING, "## Mentioned, word for word (×n: in n messages)")

_ITEM: Final = "- "
_SEPARATOR: Final = ", "
_BEHIND_FOLDER: Final = ": "
_TIMES: Final = " ×"
_MAX_COUNT: Final = 999_999
_COUNT_CHARS: Final = len(f"{_TIMES}{_MAX_COUNT}")
# A longer list was not written by us.
_MAX_LISTED: Final = 500
# The list takes so many in turn: of the best ones of the messages, of those that were often mentioned longer
# ago, and of the earlier list. With fewer of the earlier ones, what was planted once is lost after three
# compactions (`python -m bench facts`).
_MENTIONED: Final = 2
_REPEATED: Final = 1
_EARLIER: Final = 2
# The names in a path are such words, too.
_WORD: Final = re.compile(r"\w+")
# Of the room; the rest is for names.
_TODO_SHARE: Final = 0.25


def find_missing_facts(
    messages: Sequence[TranscriptEntry],
    earlier: str | None,
    summary: str,
    cap_chars: int,
    shown: Sequence[TranscriptEntry] = (),
) -> tuple[str, ...]:
    """Facts for `with_fact_list`: ranked ones that the summary does not mention. Never raises.

    earlier: the summary that is replaced together with the messages, including its list. cap_chars: the most
    characters that the list may add, including its heading. shown: messages that stay beside the summary.
    """
    ranked = rank_facts(messages, _find_known(earlier or ""))
    visible = "\n".join([summary, *(text for entry in shown for text in _list_texts(entry))])
    known = set(find_said_facts(summary))
    # A fact has at least three characters, so this many are enough even if the summary mentions most of them.
    most = max(0, cap_chars)
    whole = _find_whole_paths([*ranked.mentioned[:most], *ranked.earlier[:most]], ranked.counts)
    room = _ListRoom(cap_chars - len(f"\n\n{HEADING}"))
    todos = _ListRoom(int(room.chars * _TODO_SHARE))
    for todo in ranked.todos[:most]:
        if not _has(visible, todo) and todos.has(todo) and room.has(todo):
            todos.add(todo)
            room.add(todo)
    seen: set[str] = set()

    def pick(facts: Sequence[str]) -> Iterator[str]:
        """Those that are not visible, not picked before, and no word of one that was."""
        for fact in facts[:most]:
            path = whole.get(fact, fact)
            if path not in seen and fact not in known and not _has(visible, fact):
                seen.update((path, *_WORD.findall(path)))
                yield path

    for fact in _alternate(pick(ranked.mentioned), pick(ranked.repeated), pick(ranked.earlier)):
        line = _render_fact(fact, ranked.counts)
        if not room.has(line):
            break
        room.add(line)
    return tuple(room.facts)


class _ListRoom:
    """Takes facts as long as the rendered list has room for them."""

    def __init__(self, chars: int) -> None:
        self.chars = chars
        self.facts: list[str] = []
        self._folders: set[str] = set()

    def has(self, fact: str) -> bool:
        return self._measure(fact) <= self.chars

    def add(self, fact: str) -> None:
        self.chars -= self._measure(fact)
        self._folders.add(_split_path(fact)[0])
        self.facts.append(fact)

    def _measure(self, fact: str) -> int:
        folder, name = _split_path(fact)
        if folder in self._folders and not fact.startswith(TODO):
            return len(_SEPARATOR) + len(name)
        return len(f"\n{_ITEM}{folder}{_BEHIND_FOLDER}") + len(name)


def _alternate(mentioned: Iterator[str], repeated: Iterator[str], earlier: Iterator[str]) -> Iterator[str]:
    """The facts of the messages, with the most repeated ones and those of the earlier summary in between."""
    while batch := [*islice(mentioned, _MENTIONED), *islice(repeated, _REPEATED), *islice(earlier, _EARLIER)]:
        yield from batch


def with_fact_list(summary: str, missing: Sequence[str]) -> str:
    """The summary with the facts below it; if it ends with a list already, they are added to that."""
    if not missing:
        return summary
    text, listed = split_fact_list(summary)
    lines = "\n".join(f"{_ITEM}{line}" for line in group_facts([*listed, *missing]))
    return f"{text.rstrip()}\n\n{HEADING}\n{lines}"


def split_fact_list(text: str) -> tuple[str, tuple[str, ...]]:
    """A summary without the list at its end, and the facts of that list."""
    for heading in _HEADINGS:
        before, found, after = f"\n{text}".rpartition(f"\n{heading}\n")
        lines = after.split("\n")
        if found and all(line.startswith(_ITEM) for line in lines if line):
            facts = (fact for line in lines for fact in parse_facts(line.removeprefix(_ITEM)))
            return before.strip("\n"), tuple(islice(facts, _MAX_LISTED))
    return text, ()


def group_facts(facts: Iterable[str]) -> list[str]:
    """Lines of a list: things to do, then files by folder, then all names on one line."""
    folders: dict[str, list[str]] = {}
    todos: list[str] = []
    for fact in dict.fromkeys(facts):
        folder, name = _split_path(fact)
        if fact.startswith(TODO):
            todos.append(fact)
        else:
            folders.setdefault(folder, []).append(name)
    plain = folders.pop("", [])
    lines = [
        f"{folder}{_BEHIND_FOLDER}{_SEPARATOR.join(names)}" if len(names) > 1 else f"{folder}{names[0]}"
        for folder, names in folders.items()
    ]
    return [*todos, *lines, *([_SEPARATOR.join(plain)] if plain else [])]


def parse_facts(line: str) -> list[str]:
    """The facts of one line of a list, or of a list of an earlier version. Odd ones are dropped."""
    if line.startswith(TODO):
        return [line] if _is_fact(line) else []
    folder, found, names = line.partition(_BEHIND_FOLDER)
    if not found or " " in folder or folder[-1:] not in ("/", "\\"):
        folder, names = "", line
    return [folder + name for name in names.split(_SEPARATOR) if _is_fact(folder + name)]


def _is_fact(line: str) -> bool:
    """Whether a text is a fact, not a note on left-out items, nor other text below our heading."""
    is_short = len(line) <= LONGEST_FACT_CHARS + _COUNT_CHARS
    return bool(line.strip()) and is_short and line.isprintable() and parse_left_out(line) is None


def _split_path(fact: str) -> tuple[str, str]:
    """The folder of a path, with its last slash, and the rest; a folder of "" for everything else."""
    if fact.startswith(TODO) or "://" in fact or " " in fact.partition(_TIMES)[0]:
        return "", fact
    at = max(fact.rfind("/"), fact.rfind("\\")) + 1
    is_folder = at >= len(fact.partition(_TIMES)[0])
    return ("", fact) if is_folder else (fact[:at], fact[at:])


def _find_known(earlier: str) -> dict[str, int]:
    """The facts of a summary and of its list, and in how many messages they were mentioned."""
    text, listed = split_fact_list(earlier)
    return dict.fromkeys(find_said_facts(text), 1) | dict(map(_parse_count, listed))


def _parse_count(fact: str) -> tuple[str, int]:
    """A fact and the number of messages that mention it."""
    name, times, count = fact.rpartition(_TIMES)
    is_counted = bool(times) and count.isascii() and count.isdigit()
    return (name, int(count)) if is_counted else (fact, 1)


def _render_fact(fact: str, counts: Mapping[str, int]) -> str:
    count = counts.get(fact, 1)
    return f"{fact}{_TIMES}{min(count, _MAX_COUNT)}" if count > 1 else fact


def _find_whole_paths(facts: Iterable[str], counts: Mapping[str, int]) -> dict[str, str]:
    """For each fact that longer ones end with, the longest of them, unless there are two different ones.

    A path that is mentioned more than twice as often stays: it may be the same name in another folder.
    """
    known = dict.fromkeys(facts)
    whole: dict[str, str] = {}
    unclear: set[str] = set()
    for path in sorted(known, key=lambda fact: -len(fact)):
        at = path.find("/", 1)
        while at >= 0 and "://" not in path:
            part = path[at + 1 :]
            if part in known and not whole.setdefault(part, path).endswith(path):
                unclear.add(part)
            at = path.find("/", at + 1)
    return {
        part: path
        for part, path in whole.items()
        if part not in unclear and 2 * counts.get(path, 1) >= counts.get(part, 1)
    }


def _has(text: str, fact: str) -> bool:
    """Whether the text contains the fact as a whole word."""
    fact = fact.removeprefix(TODO)
    at = text.find(fact)
    while at >= 0:
        end = at + len(fact)
        if not (text[at - 1 : at].isalnum() or text[end : end + 1].isalnum()):
            return True
        at = text.find(fact, end)
    return False


def _list_texts(entry: TranscriptEntry) -> Iterator[str]:
    for each in (entry, *entry.more):
        yield each.text
        for _, arguments in each.calls:
            yield arguments
