"""What must hold for every conversation, whatever is done to it. Each check raises AssertionError.

Items are those of a dialect: the smallest units of a request that a client can recognize again.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.toy.agent import Session, Shape, find_tokens
from tests.toy.running import Run
from tests.toy.upstream import Seen

# A summary, a question before it or a text behind it, and a note on what was recalled.
_MOST_INSERTED = 4
# Anthropic counts what it caches beside the rest of the prompt; the others count it within.
_PROMPT_TOKENS = re.compile(
    rb'"(prompt_tokens|input_tokens|cache_creation_input_tokens|cache_read_input_tokens)": ?(\d+)'
)


@dataclass(frozen=True)
class Sent:
    """How a request left, item by item.

    kept: how many items at its end stand for as many of the client's. inserted: those of ours before them.
    shortened: ids of calls whose results are not as they came.
    """

    items: Sequence[object]
    kept: int
    inserted: Sequence[object]
    shortened: frozenset[str]


def check_conversation(
    session: Session,
    shape: Shape,
    run: Run,
    first: int = 0,
    *,
    facts: Sequence[str] = ("user", "assistant"),
    strangers: Sequence[str] = (),
) -> list[Sent]:
    """The turns from `first` on. facts: the kinds that must survive. strangers: words of others.

    Returns how each request left.
    """
    assert run.failed == []
    assert run.refusals == []
    found = []
    for turn, tries in enumerate(run.sent, first):
        assert len(tries) == 1, f"turn {turn} was sent {len(tries)} times"
        found.append(check_request(session, shape, turn, tries[0]))
        check_usage(run.answers[turn - first].body, tries[0])
    for before, after in pairwise(found):
        check_prefix(before, after)
    said = [fact for fact in session.facts if fact.turn < first + len(run.answers) - 1]
    assert run.facts_lost(find_tokens(said, *facts)) == []
    for seen in run.seen:
        check_privacy(seen, strangers)
    return found


def check_request(session: Session, shape: Shape, turn: int, seen: Seen) -> Sent:
    """Leading block, opening and tail are the client's own, in order; between them stands only a summary."""
    dialect = shape.dialect
    received = dialect.items(session.envelope(turn, shape))
    sent = dialect.items(seen.whole)
    fixed = len(dialect.items(session.envelope(0, shape)))
    kept, shortened = _match_end(received, sent)
    rest = sent[: len(sent) - kept]
    if len(received) == len(sent) == kept:
        return Sent(sent, kept, (), shortened)
    assert rest[:fixed] == received[:fixed], f"turn {turn}: the opening changed"
    assert kept >= 1, f"turn {turn}: the newest message is missing"
    inserted = rest[fixed:]
    assert 1 <= len(inserted) <= _MOST_INSERTED, f"turn {turn}: {len(inserted)} unknown items"
    return Sent(sent, kept, inserted, shortened)


def _match_end(received: Sequence[object], sent: Sequence[object]) -> tuple[int, frozenset[str]]:
    """How many items at the end are the client's own, results that are shortened included."""
    kept, shortened = 0, set[str]()
    for own, other in zip(reversed(received), reversed(sent), strict=False):
        if own != other:
            call = find_result(own)
            if call is None or call != find_result(other):
                break
            shortened.add(call)
        kept += 1
    return kept, frozenset(shortened)


def find_result(item: object) -> str | None:
    """The id of the call whose result this is, in any of the formats."""
    match item:
        case {"role": "tool", "tool_call_id": str(call)}:
            return call
        case {"type": "function_call_output", "call_id": str(call)}:
            return call
        case [_, {"type": "tool_result", "tool_use_id": str(call)}]:
            return call
    return None


def check_prefix(before: Sent, after: Sent) -> None:
    """A request begins with the one before it, unless a summary or a batch came in between."""
    if before.inserted == after.inserted and before.shortened == after.shortened:
        assert after.items[: len(before.items)] == before.items


def check_usage(body: bytes, seen: Seen) -> None:
    """Whatever the client is told of the size of its prompt is what the upstream counted."""
    told = {name: int(number) for name, number in reversed(_PROMPT_TOKENS.findall(body))}
    assert not told or sum(told.values()) == seen.prompt_tokens


def check_privacy(seen: Seen, strangers: Sequence[str] = ()) -> None:
    """Nothing of the gateway's own goes up, and nothing of anybody else."""
    assert not [name for name, _ in seen.headers if name.lower().startswith("x-gateway")]
    leaked = [word for word in strangers if word.encode() in seen.body]
    assert leaked == []


def read_headers(seen: Seen) -> Mapping[str, str]:
    return {name.lower(): value for name, value in seen.headers}
