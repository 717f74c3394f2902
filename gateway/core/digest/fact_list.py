"""Facts that must survive a summary: what the replaced messages mention and the summary does not.

They are listed under it, word for word, and carried on from list to list. Knows messages and texts; what a
fact is, is `facts`' business.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.core.digest.allocation import allocate
from gateway.core.digest.excerpt import parse_left_out
from gateway.core.digest.facts import LONGEST_FACT_CHARS, find_facts, is_secret
from gateway.core.digest.tool_arguments import (
    find_todos,
    is_todo_tool,
    iter_strings,
    parse_arguments,
    parse_checkboxes,
)
from gateway.core.history.transcript import TranscriptEntry, list_entries, neutralize

# How the list is found again at the next compaction. A line of its own, above nothing but items.
HEADING: Final = "## Mentioned, word for word (×n: in n messages)"

_TODO: Final = "todo: "
_TIMES: Final = " ×"
_MOST_COUNT: Final = 999_999
_COUNT_CHARS: Final = len(f"{_TIMES}{_MOST_COUNT}")
# The newest part of what is folded: what the work at the cut is about.
_NEWEST_PART: Final = 5
# Of each text only so much of its head and tail is read: logs repeat themselves, and a compaction must end.
_READ_CHARS: Final = 20_000
# A longer text of a user's with check boxes is a document that was handed in.
_MOST_TODO_CHARS: Final = 2_000
# The same as `_READ_CHARS` for a list that was not written by us.
_MOST_LISTED: Final = 500
# Shares of the cap by kind: open to-dos, the newest part, what was mentioned more than once, what the earlier
# summary held. Unequal ones made no difference in `python -m bench facts`.
_SHARES: Final = (1, 1, 1, 1)


class _Mention(NamedTuple):
    """How often a fact was mentioned, and where last. is_said: not only in tool results."""

    times: int
    last: int
    is_said: bool


@dataclass(frozen=True, slots=True)
class RankedFacts:
    """What counts as worth keeping, by kind, the most important first. counts: in how many messages."""

    todos: list[str]
    newest: list[str]
    repeated: list[str]
    carried: list[str]
    counts: dict[str, int]


def find_missing_facts(
    spoken: Sequence[TranscriptEntry], earlier: str | None, summary: str, cap_chars: int
) -> tuple[str, ...]:
    """Lines for `with_list`: what counts and is missing from the summary. Never raises.

    earlier: the summary that was replaced together with the messages, with its list. cap_chars: the most that
    the list may add, heading included.
    """
    counting = rank_facts(spoken, earlier)
    known = set(find_facts(summary))
    # A line takes six characters at least: so many are enough even where most of them are in the summary.
    most = max(0, cap_chars)
    missing = [
        [fact for fact in facts[:most] if fact not in known and not _has(summary, fact)]
        for facts in (counting.todos, counting.newest, counting.repeated, counting.carried)
    ]
    kinds = [
        [_render_line(fact, counting.counts) for fact in facts] for facts in _without_parts(missing, counting)
    ]
    needs = [sum(len(line) + len("\n- ") for line in lines) for lines in kinds]
    rooms = allocate(needs, _SHARES, max(0, cap_chars - len(f"\n\n{HEADING}")), 1)
    return tuple(
        line for lines, room in zip(kinds, rooms, strict=True) for line in _take_while_fits(lines, room)
    )


def rank_facts(spoken: Sequence[TranscriptEntry], earlier: str | None = None) -> RankedFacts:
    """Open to-dos; facts of the newest fifth; facts of several messages; facts of the earlier summary."""
    text, listed = split_fact_list(earlier or "")
    carried = dict.fromkeys(find_facts(_within(text)), 1) | dict(map(_read_line, listed))
    old_todos = [fact for fact in carried if fact.startswith(_TODO)]
    spoken = list_entries(spoken)
    mentions = _tally(spoken)
    counts = {fact: mention.times + carried.get(fact, 0) for fact, mention in mentions.items()}
    ranked = sorted(mentions, key=lambda f: (-counts[f], not mentions[f].is_said, -mentions[f].last))
    usable = [fact for fact in ranked if _may_be_listed(fact)]
    newest_from = _find_newest_part(spoken)
    left = [fact for fact in carried if fact not in mentions and fact not in old_todos]
    return RankedFacts(
        todos=_find_open_todos(spoken, old_todos),
        newest=[fact for fact in usable if mentions[fact].last >= newest_from],
        repeated=[fact for fact in usable if mentions[fact].last < newest_from and counts[fact] > 1],
        carried=sorted(filter(_may_be_listed, left), key=lambda fact: -carried[fact]),
        counts=carried | counts,
    )


def with_fact_list(summary: str, missing: Sequence[str]) -> str:
    """The summary with the facts below it; a list that it ends with already is continued."""
    if not missing:
        return summary
    text, listed = split_fact_list(summary)
    lines = "\n".join(f"- {line}" for line in dict.fromkeys((*listed, *missing)))
    return f"{text.rstrip()}\n\n{HEADING}\n{lines}"


def split_fact_list(text: str) -> tuple[str, tuple[str, ...]]:
    """A summary without the list that it ends with, and the list's lines."""
    before, found, after = f"\n{text}".rpartition(f"\n{HEADING}\n")
    lines = after.split("\n")
    if not found or any(line[:2] != "- " for line in lines if line):
        return text, ()
    return before.strip("\n"), tuple(line[2:] for line in lines[:_MOST_LISTED] if _is_fact(line[2:]))


def _is_fact(line: str) -> bool:
    """Not what a digest says of its own list, nor what somebody else wrote under our heading."""
    is_short = len(line) <= LONGEST_FACT_CHARS + _COUNT_CHARS
    return bool(line.strip()) and is_short and line.isprintable() and parse_left_out(line) is None


def _read_line(line: str) -> tuple[str, int]:
    """A fact and its count."""
    fact, times, count = line.rpartition(_TIMES)
    is_counted = bool(times) and count.isascii() and count.isdigit()
    return (fact, int(count)) if is_counted else (line, 1)


def _render_line(fact: str, counts: dict[str, int]) -> str:
    count = counts.get(fact, 1)
    return f"{fact}{_TIMES}{min(count, _MOST_COUNT)}" if count > 1 else fact


def _without_parts(kinds: Sequence[Sequence[str]], counting: RankedFacts) -> Iterator[list[str]]:
    """A path stands for those that it ends with, in the place of the most important of them. Not for one that
    is mentioned more than twice as often: that may be the same file in another folder.
    """
    counts = counting.counts
    whole = _find_whole_paths(fact for facts in kinds for fact in facts if not fact.startswith(_TODO))
    whole = {part: path for part, path in whole.items() if 2 * counts[path] >= counts[part]}
    seen: set[str] = set()
    for facts in kinds:
        paths = list(dict.fromkeys(whole.get(fact, fact) for fact in facts))
        yield [path for path in paths if path not in seen]
        seen.update(paths)


def _find_whole_paths(facts: Iterable[str]) -> dict[str, str]:
    """For each fact that others end with: the longest of them, unless there are two ways to lengthen it."""
    among = dict.fromkeys(facts)
    whole: dict[str, str] = {}
    unclear: set[str] = set()
    for path in sorted(among, key=lambda fact: -len(fact)):
        at = path.find("/", 1)
        while at >= 0 and "://" not in path:
            part = path[at + 1 :]
            if part in among and not whole.setdefault(part, path).endswith(path):
                unclear.add(part)
            at = path.find("/", at + 1)
    return {part: path for part, path in whole.items() if part not in unclear}


def _take_while_fits(lines: Iterable[str], room: int) -> Iterator[str]:
    for line in lines:
        room -= len(line) + len("\n- ")
        if room < 0:
            return
        yield line


def _has(summary: str, fact: str) -> bool:
    """Is it there as itself, not as a part of a longer word?"""
    fact = fact.removeprefix(_TODO)
    at = summary.find(fact)
    while at >= 0:
        end = at + len(fact)
        if not (summary[at - 1 : at].isalnum() or summary[end : end + 1].isalnum()):
            return True
        at = summary.find(fact, end)
    return False


def _may_be_listed(fact: str) -> bool:
    """No key, and nothing that would close a fence."""
    return not is_secret(fact) and neutralize(fact) == fact


def _tally(spoken: Sequence[TranscriptEntry]) -> dict[str, _Mention]:
    """Every fact and the messages it is in."""
    found: dict[str, _Mention] = {}
    for position, entry in enumerate(spoken):
        for fact in dict.fromkeys(fact for text in _read_texts(entry) for fact in find_facts(text)):
            before = found.get(fact)
            is_said = not entry.is_result or (before is not None and before.is_said)
            found[fact] = _Mention(before.times + 1 if before else 1, position, is_said)
    return found


def _find_newest_part(spoken: Sequence[TranscriptEntry]) -> int:
    """Where it begins: with a whole group."""
    start = max(0, len(spoken) - max(1, len(spoken) // _NEWEST_PART))
    while start > 0 and spoken[start].is_result:
        start -= 1
    return start


def _find_open_todos(spoken: Sequence[TranscriptEntry], before: Iterable[str]) -> list[str]:
    """Those of the latest list, and check boxes that were not ticked since. Results say what files hold,
    not what there is to do.
    """
    todos = dict.fromkeys(before)
    for entry in spoken:
        if entry.is_result:
            continue
        for name, arguments in entry.calls:
            listed = find_todos(_read_value(arguments)) if is_todo_tool(name) else ()
            if listed:
                todos = {_render_todo(todo.text): None for todo in listed if todo.is_open}
        if entry.role != "assistant" and len(entry.text) > _MOST_TODO_CHARS:
            continue
        for todo in (todo for text in _read_texts(entry) for todo in parse_checkboxes(text)):
            line = _render_todo(todo.text)
            if todo.is_open:
                todos[line] = None
            else:
                todos.pop(line, None)
    return [line for line in todos if _may_be_listed(line)]


def _render_todo(text: str) -> str:
    """On one line and not too long."""
    line = "".join(letter if letter.isprintable() else " " for letter in _TODO + text[:_MOST_TODO_CHARS])
    line = neutralize(" ".join(line.split()))
    return line if len(line) <= LONGEST_FACT_CHARS else f"{line[: LONGEST_FACT_CHARS - 1]}…"


def _read_texts(entry: TranscriptEntry) -> Iterator[str]:
    yield _within(entry.text)
    for _, arguments in entry.calls:
        yield _within("\n".join(iter_strings(_read_value(arguments))))


def _read_value(arguments: str) -> object:
    """What arguments hold; what cannot be read as JSON stands for itself, its line ends undone."""
    value = parse_arguments(arguments)
    if value is not None:
        return value
    return _within(arguments).replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"')


def _within(text: str) -> str:
    """Head and tail, cut where words end."""
    if len(text) <= 2 * _READ_CHARS:
        return text
    head, tail = text[:_READ_CHARS], text[-_READ_CHARS:]
    return f"{head[: max(head.rfind(' '), head.rfind(chr(10)))]}\n{tail[min(tail.find(' '), 300) :]}"
