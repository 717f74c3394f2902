"""Names that must survive a summary: those that the replaced messages mention and that nothing else shows.

Which paths, URLs, names in code and error codes will be needed again? Counted on recorded sessions
(`python -m bench recall`): of what a call named in the last 16 messages before a cut, the next 30 replies
name a quarter to a third again; of what only results said earlier, one in a hundred.
Knows messages and what the replaced summary listed; `facts` finds what a text mentions.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal

from gateway.core.digest.facts import find_facts, find_names, is_secret
from gateway.core.history.lists import (
    BEHIND_FOLDER,
    ITEM,
    NAMES_HEADING,
    SEPARATOR,
    ListedName,
    Told,
    split_path,
)
from gateway.core.history.transcript import TranscriptEntry, list_entries, neutralize
from gateway.core.session.todos import is_todo_call
from gateway.core.session.tool_arguments import iter_strings, parse_arguments

# Who mentioned it: a call of the model, a text of the user, a text of the model, or a result.
_Use = Literal["call", "user", "said", "result"]
# How often each was needed again, relative to a result that says it once.
_WEIGHTS: Final[Mapping[_Use, float]] = {"call": 5.0, "user": 4.0, "said": 2.0, "result": 1.0}
# A mention of so many messages ago counts half.
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
# Ten times what the longest real session mentions. A history of paths alone may hold millions, and each costs
# some microseconds.
_MAX_TALLIED: Final = 10_000
# The list takes so many in turn: of the best ones of the messages, of those that were often mentioned longer
# ago, and of the earlier list. With fewer of the earlier ones, what was planted once is lost after three
# compactions (`python -m bench facts`).
_MENTIONED: Final = 2
_OFTEN: Final = 1
_EARLIER: Final = 2
# The names in a path are such words, too.
_WORD: Final = re.compile(r"\w+")
# A file that an earlier summary listed as changed counts like a name of so many messages.
_FILE_TIMES: Final = 4


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
        # What the user says holds until the user says otherwise.
        ages = {use: 1.0 if use == "user" else 1 + (end - at) / _HALF_LIFE for use, at in self.last.items()}
        best = max(_WEIGHTS[use] / age for use, age in ages.items())
        return best * (1 + _REPEATED * min(self.times + before - 1, _MOST_REPEATED))


@dataclass(frozen=True, slots=True)
class RankedFacts:
    """Facts worth keeping, by kind, the most important first."""

    # Of the messages.
    mentioned: list[str]
    # Of these, what several messages mention, but none of the newest, the most often mentioned first.
    repeated: list[str]
    # Of the earlier summary only.
    earlier: list[str]
    # The number of messages that mention a fact.
    counts: dict[str, int]


def choose_names(
    messages: Sequence[TranscriptEntry],
    before: Told,
    visible: str,
    cap_chars: int,
    shown: str = "",
) -> tuple[ListedName, ...]:
    """Names that are not visible; rendered with their heading they take at most `cap_chars`. Never raises.

    before: what is replaced together with the messages. visible: the summary, with what else is listed below
    it. shown: what the messages say that stay beside the summary.
    """
    ranked = rank_facts(messages, _find_known(before))
    known = set(find_facts(_shorten(visible)))
    visible = f"{visible}\n{shown}"
    # A fact has at least three characters, so this many are enough even if the summary mentions most of them.
    most = max(0, cap_chars)
    whole = _find_whole_paths([*ranked.mentioned[:most], *ranked.earlier[:most]], ranked.counts)
    seen: set[str] = set()

    def pick(facts: Sequence[str]) -> Iterator[str]:
        """Those that are not visible, not picked before, and no word of one that was."""
        for fact in facts[:most]:
            path = whole.get(fact, fact)
            if path not in seen and fact not in known and not has_word(visible, fact):
                seen.update((path, *_WORD.findall(path)))
                yield path

    mentioned, repeated, earlier = pick(ranked.mentioned), pick(ranked.repeated), pick(ranked.earlier)

    def alternate() -> Iterator[str]:
        """Facts of the messages, with the most repeated ones and those of the earlier summary in between."""
        turns = ((mentioned, _MENTIONED), (repeated, _OFTEN), (earlier, _EARLIER))
        while batch := [fact for facts, number in turns for fact in islice(facts, number)]:
            yield from batch

    names: list[ListedName] = []
    folders: set[str] = set()
    room = cap_chars - len(f"\n\n{NAMES_HEADING}")
    for fact in alternate():
        name = ListedName(fact, ranked.counts.get(fact, 1))
        folder, rest = split_path(str(name))
        room -= len(rest) + len(SEPARATOR if folder in folders else f"\n{ITEM}{folder}{BEHIND_FOLDER}")
        if room < 0:
            break
        folders.add(folder)
        names.append(name)
    return tuple(names)


def _find_known(before: Told) -> dict[str, int]:
    """The facts of a replaced summary and of its lists, and in how many messages they were mentioned."""
    said = find_facts(_shorten("\n".join([before.summary, *before.lists.quoted])))
    listed = {name.text: name.times for name in before.lists.names}
    files = {file.path: _FILE_TIMES for file in before.lists.files}
    return {**dict.fromkeys(said, 1), **listed, **files}


def rank_facts(messages: Sequence[TranscriptEntry], known: Mapping[str, int]) -> RankedFacts:
    """known: facts of the earlier summary, and in how many messages they were mentioned."""
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
    mentioned = [fact for fact in ranked if scores[fact] >= _LEAST_SCORE and may_be_listed(fact)]
    newest_from = len(entries) - len(entries) // _NEWEST_PART
    repeated = [
        fact
        for fact in mentioned
        if mentions[fact].is_fact and counts[fact] > 1 and mentions[fact].newest < newest_from
    ]
    left = [fact for fact in known if fact not in mentions]
    return RankedFacts(
        mentioned=mentioned,
        repeated=sorted(repeated, key=lambda fact: -counts[fact]),
        earlier=sorted(filter(may_be_listed, left), key=lambda fact: -known[fact]),
        counts=counts,
    )


def may_be_listed(fact: str) -> bool:
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
        names = facts if is_todo_call(tool) else find_names(text)
        uses.update({name: ("call", name in facts) for name in names})
    return uses


def _forget_oldest(mentions: dict[str, _Mentions]) -> dict[str, _Mentions]:
    """Drops facts that were mentioned once before others, and the oldest first."""
    ranked = sorted(mentions, key=lambda fact: (mentions[fact].times > 1, mentions[fact].newest))
    return {fact: mentions[fact] for fact in ranked[-_MAX_TALLIED:]}


def _parse_value(arguments: str) -> object:
    """The parsed arguments, or their text with unescaped line ends if they are not JSON."""
    value = parse_arguments(arguments)
    return (
        value
        if value is not None
        else _shorten(arguments).replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"')
    )


def _shorten(text: str) -> str:
    """Head and tail of the text, cut between words."""
    if len(text) <= 2 * _READ_CHARS:
        return text
    head, tail = text[:_READ_CHARS], text[-_READ_CHARS:]
    return f"{head[: max(head.rfind(' '), head.rfind(chr(10)))]}\n{tail[min(tail.find(' '), 300) :]}"


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


def has_word(text: str, fact: str) -> bool:
    """Whether the text contains the fact as a whole word."""
    at = text.find(fact)
    while at >= 0:
        end = at + len(fact)
        if not (text[at - 1 : at].isalnum() or text[end : end + 1].isalnum()):
            return True
        at = text.find(fact, end)
    return False
