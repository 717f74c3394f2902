"""What must hold for every conversation, whatever is done to it. Each check raises AssertionError.

Items are those of a dialect: the smallest units of a request that a client can recognize again.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from tests.toy.agent import Fact, Session, Shape
from tests.toy.counting import TokenCounter, count_text
from tests.toy.economics import fewest_summaries, hard_line, summary_budget
from tests.toy.running import Answer, Run
from tests.toy.summarising import find_facts, read_output_limit
from tests.toy.upstream import Seen

PLACEHOLDER = "[Old tool result content cleared]"
# A summary, a question before it or a text behind it, and a note on what was recalled.
_MOST_INSERTED = 4
_LEAST_OUTPUT = 1_024
# Anthropic counts what it caches beside the rest of the prompt; the others count it within.
_PROMPT_TOKENS = re.compile(
    rb'"(prompt_tokens|input_tokens|cache_creation_input_tokens|cache_read_input_tokens)": ?(\d+)'
)
_OUTPUT_TOKENS = re.compile(rb'"(?:completion_tokens|output_tokens)": ?(\d+)')
_SIZES = re.compile(r"received=(\d+), sent=(\d+)")
_PLANS = re.compile(r"passthrough|pruned|pivot|pivot\+pruned|digest|digest\+pruned|cut")


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a policy promises beyond what holds for each.

    facts: the kinds that must survive. strangers: words of others. placeholder: what stands for a cleared
    result. protected: tools whose results stay. protect_tokens: of the newest results. tolerance: of an
    estimate, as a share of what the upstream counts. keeps_opening: false where the policy folds it.
    bias: with which the upstream counts. window: None: nothing is said of sizes. tries: calls that one
    request may take.
    """

    facts: Sequence[str] = ("user", "assistant", "tool")
    strangers: Sequence[str] = ()
    placeholder: str = PLACEHOLDER
    protected: Sequence[str] = ()
    protect_tokens: int = 0
    tolerance: float = 0.15
    keeps_opening: bool = True
    keeps_prefix: bool = True
    bias: float = 1.0
    window: int | None = None
    budget: int | None = None
    tries: int = 1


USUAL = Promise()


@dataclass(frozen=True)
class Sent:
    """How a request left, item by item.

    kept: how many items at its end stand for as many of the client's. inserted: those of ours before them.
    shortened: the texts of results that are not as they came, by the ids of their calls.
    """

    items: Sequence[object]
    kept: int
    inserted: Sequence[object]
    shortened: Mapping[str, str] = field(default_factory=dict)


def check_conversation(
    session: Session, shape: Shape, run: Run, first: int = 0, promise: Promise = USUAL
) -> list[Sent]:
    """The turns from `first` on, played in one go. Returns how each request left."""
    assert run.failed == []
    assert run.refusals == []
    found = []
    for turn, tries in enumerate(run.sent, first):
        assert 1 <= len(tries) <= promise.tries, f"turn {turn} was sent {len(tries)} times"
        answer = run.answers[turn - first]
        sent = check_request(session, shape, turn, tries[-1], promise)
        check_usage(answer.body, tries[-1])
        check_output(shape, answer, tries[-1])
        check_plan(answer, sent)
        check_placeholders(session, shape, turn, sent, promise)
        found.append(sent)
    if promise.keeps_prefix:
        check_prefixes(found, run)
    check_facts(session, run, found, first, promise)
    check_identity(run)
    check_estimates(run, promise)
    if promise.window is not None:
        check_sizes(session, shape, run, promise.window, promise)
    for seen in run.seen:
        check_privacy(seen, promise.strangers)
    return found


def check_request(session: Session, shape: Shape, turn: int, seen: Seen, promise: Promise = USUAL) -> Sent:
    """Leading block, opening and tail are the client's own, in order; between them stands only a summary."""
    dialect = shape.dialect
    received = dialect.items(session.envelope(turn, _spell_out(shape)))
    sent = dialect.items(seen.whole)
    kept, shortened = _match_end(received, sent)
    rest = sent[: len(sent) - kept]
    if len(received) == len(sent) == kept:
        return Sent(sent, kept, (), shortened)
    fixed = len(dialect.items(session.envelope(0, _spell_out(shape))))
    if not promise.keeps_opening:
        fixed -= len(session.opening)
    assert rest[:fixed] == received[:fixed], f"turn {turn}: the opening changed"
    open_group = 1 + len(session.turns[turn - 1].followers) if turn else 1
    assert kept >= open_group, f"turn {turn}: of the open group only {kept} items are left"
    inserted = rest[fixed:]
    assert 1 <= len(inserted) <= _MOST_INSERTED, f"turn {turn}: {len(inserted)} unknown items"
    return Sent(sent, kept, inserted, shortened)


def _spell_out(shape: Shape) -> Shape:
    """The same without references: what the model is meant to see."""
    history = getattr(shape.dialect, "history", "whole")
    if history == "whole" and not getattr(shape.dialect, "threads", False):
        return shape
    changes: dict[str, Any] = {"history": "whole"} if history != "whole" else {"threads": False}
    return replace(shape, dialect=replace(shape.dialect, **changes))  # type: ignore[type-var]


def _match_end(received: Sequence[object], sent: Sequence[object]) -> tuple[int, Mapping[str, str]]:
    """How many items at the end are the client's own, results that are shortened included."""
    kept, shortened = 0, dict[str, str]()
    for own, other in zip(reversed(received), reversed(sent), strict=False):
        if own != other:
            call = find_result(own)
            if call is None or call != find_result(other):
                break
            shortened[call] = read_result(other)
            assert type(_content_of(own)) is type(_content_of(other)), "the form of a result changed"
        kept += 1
    return kept, shortened


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


def _content_of(item: object) -> object:
    match item:
        case {"role": "tool", "content": content}:
            return content
        case {"output": content}:
            return content
        case [_, {"content": content}]:
            return content
    return None


def read_result(item: object) -> str:
    """Its text."""
    content = _content_of(item)
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content)


def check_placeholders(
    session: Session, shape: Shape, turn: int, sent: Sent, promise: Promise = USUAL
) -> None:
    """Only old results of tools that are not protected are cleared, with the placeholder of the policy."""
    if not sent.shortened:
        return
    assert set(sent.shortened.values()) == {promise.placeholder}
    results = [
        (str(message["tool_call_id"]), at, count_text(str(message["content"])))
        for at, done in enumerate(session.turns[:turn])
        for message in done.followers
        if message["role"] == "tool"
    ]
    names = {
        call["id"]: call["function"]["name"]
        for done in session.turns[:turn]
        for call in done.assistant.get("tool_calls") or ()  # type: ignore[attr-defined]
    }
    newest = max(place for place, (call, _, _) in enumerate(results) if call in sent.shortened)
    assert results[newest][1] < turn - 1, "a result that the model has not seen is cleared"
    assert not {names[call] for call in sent.shortened} & set(promise.protected)
    assert sum(tokens for _, _, tokens in results[newest + 1 :]) >= 0.8 * promise.protect_tokens


def check_prefixes(found: Sequence[Sent], run: Run) -> None:
    """A request begins with the one before it, unless a summary or a batch came in between."""
    changes = 0
    for before, after in pairwise(found):
        if before.inserted == after.inserted:
            if before.shortened == after.shortened:
                assert after.items[: len(before.items)] == before.items
            gone = before.shortened.keys() - after.shortened.keys()
            assert not gone, f"cleared results came back: {gone}"
        else:
            assert after.inserted, "the summary is gone again"
            changes += 1
    digests = sum(plan is not None and "digest" in plan for plan in run.plans)
    assert changes <= len(run.summaries) + digests


def check_facts(
    session: Session, run: Run, found: Sequence[Sent], first: int, promise: Promise = USUAL
) -> None:
    """At each request every fact of the turns before it is in it, or a summary call before it has seen it.

    The fact of a result may be cleared with it.
    """
    cleared = {call for sent in found for call in sent.shortened}
    lost_with = {
        fact
        for done in session.turns
        for message in done.followers
        if message.get("tool_call_id") in cleared
        for fact in find_facts({"messages": [message]})
    }
    facts = [fact for fact in session.facts if fact.kind in promise.facts and fact.token not in lost_with]
    told, place, everything = set[str](), 0, list(run.seen)
    for turn, tries in enumerate(run.sent, first):
        end = next(at for at, seen in enumerate(everything) if seen is tries[-1])
        for seen in everything[place:end]:
            told |= set(seen.facts)
        place = end
        known = told | set(find_facts(tries[-1].whole))
        lost = [fact for fact in facts if fact.turn < turn and fact.token not in known]
        assert lost == [], f"turn {turn} goes without {lost}"


def list_facts(session: Session, *kinds: str, before: int) -> list[Fact]:
    return [fact for fact in session.facts if fact.kind in kinds and fact.turn < before]


def check_usage(body: bytes, seen: Seen) -> None:
    """Whatever the client is told of the size of its prompt is what the upstream counted."""
    told = {name: int(number) for name, number in reversed(_PROMPT_TOKENS.findall(body))}
    assert not told or sum(told.values()) == seen.prompt_tokens


def read_output_tokens(answer: Answer) -> int | None:
    """As the upstream reported them, if the client is told. Of a stream, the last ones."""
    found = _OUTPUT_TOKENS.findall(answer.body)
    return int(found[-1]) if found else None


def check_output(shape: Shape, answer: Answer, seen: Seen) -> None:
    """What is asked of the model is never raised, and shortened only as far as it is said."""
    asked, sent, told = (
        shape.max_tokens,
        read_output_limit(seen.request),
        answer.header("x-gateway-max-tokens"),
    )
    if asked is None:
        assert sent is None or shape.dialect.path == "/messages"
        return
    assert sent is not None
    assert sent <= asked and (sent == asked) == (told is None)
    assert sent >= min(_LEAST_OUTPUT, asked)
    assert told is None or int(told) == sent


def check_plan(answer: Answer, sent: Sent) -> None:
    """The header says what was done."""
    plan = answer.header("x-gateway-plan") or ""
    assert _PLANS.fullmatch(plan), plan
    assert bool(sent.inserted) == ("pivot" in plan or "digest" in plan), plan
    assert not sent.shortened or "pruned" in plan, plan
    sizes = _SIZES.fullmatch(answer.header("x-gateway-tokens") or "")
    assert sizes is not None
    received, left = int(sizes[1]), int(sizes[2])
    assert received > left if plan != "passthrough" else received == left


def read_sizes(answer: Answer) -> tuple[int, int]:
    """What was received and sent, by the gateway's own estimate."""
    sizes = _SIZES.fullmatch(answer.header("x-gateway-tokens") or "")
    assert sizes is not None
    return int(sizes[1]), int(sizes[2])


def check_identity(run: Run) -> None:
    """One branch has one id, as long as it goes on."""
    assert len({answer.header("x-gateway-conversation") for answer in run.answers}) == 1


def check_estimates(run: Run, promise: Promise = USUAL) -> None:
    """From the third request on, the estimate is near what the upstream counts, whatever its tokenizer."""
    for answer, tries in list(zip(run.answers, run.sent, strict=True))[2:]:
        true, estimate = tries[-1].prompt_tokens, read_sizes(answer)[1]
        assert abs(estimate - true) <= promise.tolerance * true, f"{estimate} of {true}"


def check_sizes(session: Session, shape: Shape, run: Run, window: int, promise: Promise = USUAL) -> None:
    """Few summaries, each within the window; and no request comes where clients compact by themselves."""
    counter, spelled = TokenCounter(promise.bias), _spell_out(shape)
    budget = promise.budget
    if budget is None:
        budget = summary_budget(session, counter, window, spelled)
        assert bool(run.summaries) or fewest_summaries(session, counter, window, spelled) <= 1
    assert len(run.summaries) <= budget
    assert all(seen.prompt_tokens <= window for seen in run.seen if seen.is_chat)
    most = hard_line(window) * (1 + promise.tolerance)
    over = [seen.prompt_tokens for seen in run.outgoing[2:] if seen.prompt_tokens > most]
    assert over == []


def check_privacy(seen: Seen, strangers: Sequence[str] = ()) -> None:
    """Nothing of the gateway's own goes up, and nothing of anybody else."""
    assert not [name for name, _ in seen.headers if name.lower().startswith("x-gateway")]
    leaked = [word for word in strangers if word.encode() in seen.body]
    assert leaked == []


def check_numbers(row: Mapping[str, Any], run: Run, summaries: Sequence[Seen]) -> None:
    """What the admin port says of a conversation that was played from its beginning is what the upstream saw.

    summaries: all of its calls, one for what comes next included.
    """
    assert row["requests"] == len(run.answers)
    assert row["prompt_tokens"] == run.outgoing[-1].prompt_tokens == row["sent_tokens"]
    assert row["plan"] == run.plans[-1]
    economics = row["economics"]
    assert economics["prompt_tokens"] == sum(seen.prompt_tokens for seen in run.outgoing)
    told = [read_output_tokens(answer) for answer in run.answers]
    if None not in told:
        assert row["output_tokens"] == told[-1]
        assert economics["output_tokens"] == sum(filter(None, told))
    assert economics["summary_calls"] == len(summaries)


def read_headers(seen: Seen) -> Mapping[str, str]:
    return {name.lower(): value for name, value in seen.headers}
