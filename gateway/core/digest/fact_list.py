"""Facts that must survive a summary: those that the replaced messages mention and the summary does not.

They are listed below the summary, word for word, and passed on from list to list. Knows messages and texts;
`facts` finds the facts of a text.
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

# The next compaction finds the list by this line, which is followed by items only.
HEADING: Final = "## Mentioned, word for word (×n: in n messages)"

_TODO: Final = "todo: "
_TIMES: Final = " ×"
_MAX_COUNT: Final = 999_999
_COUNT_CHARS: Final = len(f"{_TIMES}{_MAX_COUNT}")
# The newest fifth of the replaced messages shows what the work at the cut is about.
_NEWEST_PART: Final = 5
# Only this much of the head and of the tail of each text is read, because logs repeat themselves.
_READ_CHARS: Final = 20_000
# A longer user text with check boxes is a document, not a list of things to do.
_MAX_TODO_CHARS: Final = 2_000
# A longer list was not written by us.
_MAX_LISTED: Final = 500
# Ten times what the longest real session mentions. A history of paths alone may hold millions, and each costs
# some microseconds.
_MAX_TALLIED: Final = 10_000
# Weights for open to-dos, facts of the newest part, facts of several messages, and facts of the earlier
# summary. Unequal weights made no difference in `python -m bench facts`.
_WEIGHTS: Final = (1, 1, 1, 1)


class _Mention(NamedTuple):
    """How a fact was mentioned."""

    times: int
    # The position of the last message that mentions it.
    last: int
    # Also mentioned outside of tool results.
    is_said: bool


@dataclass(frozen=True, slots=True)
class RankedFacts:
    """Facts worth keeping, by kind, the most important first."""

    todos: list[str]
    newest: list[str]
    repeated: list[str]
    # From the earlier summary.
    earlier: list[str]
    # The number of messages that mention a fact.
    counts: dict[str, int]


def find_missing_facts(
    messages: Sequence[TranscriptEntry], earlier: str | None, summary: str, cap_chars: int
) -> tuple[str, ...]:
    """Lines for `with_fact_list`: ranked facts that the summary does not mention. Never raises.

    earlier: the summary that is replaced together with the messages, including its list. cap_chars: the most
    characters that the list may add, including its heading.
    """
    ranked = rank_facts(messages, earlier)
    known = set(find_facts(summary))
    # A line has at least six characters, so this many are enough even if the summary mentions most of them.
    most = max(0, cap_chars)
    missing = [
        [fact for fact in facts[:most] if fact not in known and not _has(summary, fact)]
        for facts in (ranked.todos, ranked.newest, ranked.repeated, ranked.earlier)
    ]
    kinds = [
        [_render_line(fact, ranked.counts) for fact in facts]
        for facts in _without_parts(missing, ranked.counts)
    ]
    needs = [sum(len(line) + len("\n- ") for line in lines) for lines in kinds]
    rooms = allocate(needs, _WEIGHTS, max(0, cap_chars - len(f"\n\n{HEADING}")), 1)
    return tuple(
        line for lines, room in zip(kinds, rooms, strict=True) for line in _take_while_fits(lines, room)
    )


def rank_facts(messages: Sequence[TranscriptEntry], earlier: str | None = None) -> RankedFacts:
    """Open to-dos, facts of the newest messages, of several messages, and of the earlier summary."""
    text, listed = split_fact_list(earlier or "")
    known = dict.fromkeys(find_facts(_shorten(text)), 1) | dict(map(_parse_line, listed))
    old_todos = [fact for fact in known if fact.startswith(_TODO)]
    entries = list_entries(messages)
    mentions = _tally(entries)
    counts = {fact: mention.times + known.get(fact, 0) for fact, mention in mentions.items()}
    by_rank = sorted(mentions, key=lambda f: (-counts[f], not mentions[f].is_said, -mentions[f].last))
    usable = [fact for fact in by_rank if _may_be_listed(fact)]
    newest_from = _find_newest_part(entries)
    left = [fact for fact in known if fact not in mentions and fact not in old_todos]
    return RankedFacts(
        todos=_find_open_todos(entries, old_todos),
        newest=[fact for fact in usable if mentions[fact].last >= newest_from],
        repeated=[fact for fact in usable if mentions[fact].last < newest_from and counts[fact] > 1],
        earlier=sorted(filter(_may_be_listed, left), key=lambda fact: -known[fact]),
        counts=known | counts,
    )


def with_fact_list(summary: str, missing: Sequence[str]) -> str:
    """The summary with the facts below it; if it ends with a list already, they are added to that."""
    if not missing:
        return summary
    text, listed = split_fact_list(summary)
    lines = "\n".join(f"- {line}" for line in dict.fromkeys((*listed, *missing)))
    return f"{text.rstrip()}\n\n{HEADING}\n{lines}"


def split_fact_list(text: str) -> tuple[str, tuple[str, ...]]:
    """A summary without the list at its end, and the lines of that list."""
    before, found, after = f"\n{text}".rpartition(f"\n{HEADING}\n")
    lines = after.split("\n")
    if not found or any(line[:2] != "- " for line in lines if line):
        return text, ()
    return before.strip("\n"), tuple(line[2:] for line in lines[:_MAX_LISTED] if _is_fact(line[2:]))


def _is_fact(line: str) -> bool:
    """Whether a line is a fact, not a note on left-out items, nor other text below our heading."""
    is_short = len(line) <= LONGEST_FACT_CHARS + _COUNT_CHARS
    return bool(line.strip()) and is_short and line.isprintable() and parse_left_out(line) is None


def _parse_line(line: str) -> tuple[str, int]:
    """A fact and the number of messages that mention it."""
    fact, times, count = line.rpartition(_TIMES)
    is_counted = bool(times) and count.isascii() and count.isdigit()
    return (fact, int(count)) if is_counted else (line, 1)


def _render_line(fact: str, counts: dict[str, int]) -> str:
    count = counts.get(fact, 1)
    return f"{fact}{_TIMES}{min(count, _MAX_COUNT)}" if count > 1 else fact


def _without_parts(kinds: Sequence[Sequence[str]], counts: dict[str, int]) -> Iterator[list[str]]:
    """The facts of each kind, with every path that another one ends with replaced by that longer path.

    A path that is mentioned more than twice as often stays: it may be the same name in another folder.
    """
    whole = _find_whole_paths(fact for facts in kinds for fact in facts if not fact.startswith(_TODO))
    whole = {part: path for part, path in whole.items() if 2 * counts[path] >= counts[part]}
    seen: set[str] = set()
    for facts in kinds:
        paths = list(dict.fromkeys(whole.get(fact, fact) for fact in facts))
        yield [path for path in paths if path not in seen]
        seen.update(paths)


def _find_whole_paths(facts: Iterable[str]) -> dict[str, str]:
    """For each fact that longer ones end with, the longest of them, unless there are two different ones."""
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
    return {part: path for part, path in whole.items() if part not in unclear}


def _take_while_fits(lines: Iterable[str], room: int) -> Iterator[str]:
    for line in lines:
        room -= len(line) + len("\n- ")
        if room < 0:
            return
        yield line


def _has(summary: str, fact: str) -> bool:
    """Whether the summary contains the fact as a whole word."""
    fact = fact.removeprefix(_TODO)
    at = summary.find(fact)
    while at >= 0:
        end = at + len(fact)
        if not (summary[at - 1 : at].isalnum() or summary[end : end + 1].isalnum()):
            return True
        at = summary.find(fact, end)
    return False


def _may_be_listed(fact: str) -> bool:
    """Whether a fact may be repeated: it is not a key, and cannot close a fence."""
    return not is_secret(fact) and neutralize(fact) == fact


def _tally(entries: Sequence[TranscriptEntry]) -> dict[str, _Mention]:
    """Every fact and the entries it is in."""
    found: dict[str, _Mention] = {}
    for position, entry in enumerate(entries):
        for fact in dict.fromkeys(fact for text in _list_texts(entry) for fact in find_facts(text)):
            before = found.get(fact)
            is_said = not entry.is_result or (before is not None and before.is_said)
            found[fact] = _Mention(before.times + 1 if before else 1, position, is_said)
        if len(found) > 2 * _MAX_TALLIED:
            found = _forget_oldest(found)
    return found


def _forget_oldest(mentions: dict[str, _Mention]) -> dict[str, _Mention]:
    """Drops facts that were mentioned once before others, and the oldest first."""
    ranked = sorted(mentions, key=lambda fact: (mentions[fact].times > 1, mentions[fact].last))
    return {fact: mentions[fact] for fact in ranked[-_MAX_TALLIED:]}


def _find_newest_part(entries: Sequence[TranscriptEntry]) -> int:
    """The position where the newest part begins, which is never a result without its call."""
    start = max(0, len(entries) - max(1, len(entries) // _NEWEST_PART))
    while start > 0 and entries[start].is_result:
        start -= 1
    return start


def _find_open_todos(entries: Sequence[TranscriptEntry], before: Iterable[str]) -> list[str]:
    """The open items of the latest list, and check boxes that were not ticked since.

    Results are ignored, because they show what is in files, not what there is to do.
    """
    todos = dict.fromkeys(before)
    for entry in entries:
        if entry.is_result:
            continue
        for name, arguments in entry.calls:
            listed = find_todos(_parse_value(arguments)) if is_todo_tool(name) else ()
            if listed:
                todos = {_render_todo(todo.text): None for todo in listed if todo.is_open}
        if entry.role != "assistant" and len(entry.text) > _MAX_TODO_CHARS:
            continue
        for todo in (todo for text in _list_texts(entry) for todo in parse_checkboxes(text)):
            line = _render_todo(todo.text)
            if todo.is_open:
                todos[line] = None
            else:
                todos.pop(line, None)
    return [line for line in todos if _may_be_listed(line)]


def _render_todo(text: str) -> str:
    """The item on one line, shortened if it is too long."""
    line = "".join(letter if letter.isprintable() else " " for letter in _TODO + text[:_MAX_TODO_CHARS])
    line = neutralize(" ".join(line.split()))
    return line if len(line) <= LONGEST_FACT_CHARS else f"{line[: LONGEST_FACT_CHARS - 1]}…"


def _list_texts(entry: TranscriptEntry) -> Iterator[str]:
    yield _shorten(entry.text)
    for _, arguments in entry.calls:
        yield _shorten("\n".join(iter_strings(_parse_value(arguments))))


def _parse_value(arguments: str) -> object:
    """The parsed arguments, or their text with unescaped line ends if they are not JSON."""
    value = parse_arguments(arguments)
    if value is not None:
        return value
    return _shorten(arguments).replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"')


def _shorten(text: str) -> str:
    """Head and tail of the text, cut between words."""
    if len(text) <= 2 * _READ_CHARS:
        return text
    head, tail = text[:_READ_CHARS], text[-_READ_CHARS:]
    return f"{head[: max(head.rfind(' '), head.rfind(chr(10)))]}\n{tail[min(tail.find(' '), 300) :]}"
