"""Ranks the facts of messages: which names, paths, URLs and codes will be needed again?

Counted on recorded sessions (`python -m bench recall`): of what a call named in the last 16 messages before a
cut, the next 30 replies name a quarter to a third again; of what only results said earlier, one in a hundred.
Knows messages; `facts` and `names` find what a text mentions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from gateway.core.digest.facts import LONGEST_FACT_CHARS, find_facts, is_secret
from gateway.core.digest.names import find_names
from gateway.core.digest.tool_arguments import (
    find_todos,
    is_todo_tool,
    iter_strings,
    parse_arguments,
    parse_checkboxes,
)
from gateway.core.history.transcript import TranscriptEntry, list_entries, neutralize

TODO: Final = "todo: "
# Who mentioned it: a call of the model, a text of the user, a text of the model, or a result.
_Use = Literal["call", "user", "said", "result"]
# How often each was needed again, relative to a result that says it once.
_WEIGHTS: Final[Mapping[_Use, float]] = {"call": 5.0, "user": 4.0, "said": 2.0, "result": 1.0}
# A mention of so many messages ago counts half. What the user says holds until the user says otherwise.
_HALF_LIFE: Final = 32
# Each further message that mentions a fact adds this much of its weight, up to so many.
_REPEATED: Final = 0.5
_MOST_REPEATED: Final = 6
# What has less weight is noise: what only old results say once.
_LEAST_SCORE: Final = 0.5
# A result with more facts is a listing. What nothing else mentions is not listed again.
_LISTING: Final = 40
# The newest fifth of the messages shows what the work at the cut is about.
_NEWEST_PART: Final = 5
# Only this much of the head and of the tail of each text is read, because logs repeat themselves.
_READ_CHARS: Final = 20_000
# A longer user text with check boxes is a document, not a list of things to do.
_MAX_TODO_CHARS: Final = 2_000
# Ten times what the longest real session mentions. A history of paths alone may hold millions, and each costs
# some microseconds.
_MAX_TALLIED: Final = 10_000


@dataclass(slots=True)
class _Mentions:
    """How a fact was mentioned."""

    # The number of messages.
    times: int = 0
    # The position of the last message, by use.
    last: dict[_Use, int] = field(default_factory=dict)
    # Found by `find_facts`; otherwise it is an identifier of a call.
    is_fact: bool = False
    # Also mentioned outside of listings.
    is_picked: bool = False

    @property
    def newest(self) -> int:
        return max(self.last.values())

    def score(self, end: int, before: int) -> float:
        """end: the number of messages. before: in how many earlier ones it was mentioned."""
        if not self.is_picked and not before:
            return 0.0
        best = max(_WEIGHTS[use] / _find_age(use, end - at) for use, at in self.last.items())
        return best * (1 + _REPEATED * min(self.times + before - 1, _MOST_REPEATED))


@dataclass(frozen=True, slots=True)
class RankedFacts:
    """Facts worth keeping, by kind, the most important first."""

    todos: list[str]
    # Of the messages.
    mentioned: list[str]
    # Of these, what several messages mention, but none of the newest, the most often mentioned first.
    repeated: list[str]
    # Of the earlier summary only.
    earlier: list[str]
    # The number of messages that mention a fact.
    counts: dict[str, int]


def _find_age(use: _Use, messages: int) -> float:
    return 1.0 if use == "user" else 1 + messages / _HALF_LIFE


def rank_facts(messages: Sequence[TranscriptEntry], known: Mapping[str, int]) -> RankedFacts:
    """known: facts of the earlier summary, and in how many messages they were mentioned."""
    old_todos = [fact for fact in known if fact.startswith(TODO)]
    entries = list_entries(messages)
    mentions = _tally(entries)
    counts = {
        **known,
        # Identifiers are of use for a while only: in the next list they come last.
        **{
            fact: found.times + known.get(fact, 0) if found.is_fact else 1 for fact, found in mentions.items()
        },
    }
    scores = {fact: found.score(len(entries), known.get(fact, 0)) for fact, found in mentions.items()}
    ranked = sorted(scores, key=lambda fact: (-scores[fact], -mentions[fact].newest))
    mentioned = [fact for fact in ranked if scores[fact] >= _LEAST_SCORE and _may_be_listed(fact)]
    newest_from = len(entries) - len(entries) // _NEWEST_PART
    repeated = [
        fact
        for fact in mentioned
        if mentions[fact].is_fact and counts[fact] > 1 and mentions[fact].newest < newest_from
    ]
    left = [fact for fact in known if fact not in mentions and not fact.startswith(TODO)]
    return RankedFacts(
        todos=_find_open_todos(entries, old_todos),
        mentioned=mentioned,
        repeated=sorted(repeated, key=lambda fact: -counts[fact]),
        earlier=sorted(filter(_may_be_listed, left), key=lambda fact: -known[fact]),
        counts=counts,
    )


def find_said_facts(text: str) -> tuple[str, ...]:
    """The facts of a summary's own text."""
    return find_facts(_shorten(text))


def _may_be_listed(fact: str) -> bool:
    """Whether a fact may be repeated: it is not a key, and cannot close a fence."""
    return not is_secret(fact) and neutralize(fact) == fact


def _tally(entries: Sequence[TranscriptEntry]) -> dict[str, _Mentions]:
    """Every fact and the entries it is in."""
    found: dict[str, _Mentions] = {}
    for position, entry in enumerate(entries):
        uses = _find_uses(entry)
        is_listing = entry.is_result and len(uses) > _LISTING
        for fact, (use, is_fact) in uses.items():
            mentions = found.setdefault(fact, _Mentions())
            mentions.is_fact = mentions.is_fact or is_fact
            mentions.times += 1
            mentions.last[use] = position
            mentions.is_picked = mentions.is_picked or not is_listing
        if len(found) > 2 * _MAX_TALLIED:
            found = _forget_oldest(found)
    return found


def _find_uses(entry: TranscriptEntry) -> dict[str, tuple[_Use, bool]]:
    """The facts of an entry; False beside an identifier. Identifiers count in calls only: texts and results
    have too many of them.
    """
    use: _Use = "result" if entry.is_result else "said" if entry.role == "assistant" else "user"
    uses = dict.fromkeys(find_facts(_shorten(entry.text)), (use, True))
    for tool, arguments in entry.calls:
        text = _shorten("\n".join(iter_strings(_parse_value(arguments))))
        facts = frozenset(find_facts(text))
        # The states of things to do look like identifiers.
        names = facts if is_todo_tool(tool) else find_names(text)
        uses.update({name: ("call", name in facts) for name in names})
    return uses


def _forget_oldest(mentions: dict[str, _Mentions]) -> dict[str, _Mentions]:
    """Drops facts that were mentioned once before others, and the oldest first."""
    ranked = sorted(mentions, key=lambda fact: (mentions[fact].times > 1, mentions[fact].newest))
    return {fact: mentions[fact] for fact in ranked[-_MAX_TALLIED:]}


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
    line = "".join(letter if letter.isprintable() else " " for letter in TODO + text[:_MAX_TODO_CHARS])
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
