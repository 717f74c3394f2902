"""How large a request is as it came and as it is sent, and how much of that a provider's cache can reuse.

Where the recording has usage, the request as it came has exactly that size; what a plan takes away is counted
by the estimator and scaled to the usage. A cache reuses what two prompts of one conversation begin with in
common, in whole messages. What the recording has beyond our count belongs to the system prompt and the tools.

The cache is simulated by the rules that providers publish. An automatic one reuses what a prompt begins with
in common with the one before it, in steps of 128 tokens, from 1,024 tokens on. A marked one keeps prompts up
to the places where the client put a `cache_control`, and asks extra for writing them. Nothing is ever
forgotten: a recording has no pauses.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from gateway.activity.series import PrefixChange
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.history.view import View, is_sent, measure, measure_range
from gateway.core.money import Price
from gateway.core.sizing.estimate import Sizes
from gateway.planning.message_sizes import Sizer
from gateway.replay.recordings import RecordedUsage
from gateway.replay.results import RequestRun

CacheKind = Literal["none", "automatic", "marked"]

LEAST_TOKENS: Final = 1_024
STEP_TOKENS: Final = 128
# Far more conversations of one recording than are under way at a time.
_MOST_BRANCHES: Final = 512
# Smaller steps say little about a tokenizer.
_LEAST_STEP_TOKENS: Final = 50
# A ratio outside of these is no tokenizer's.
_SMALLEST_RATIO: Final = 0.5
_LARGEST_RATIO: Final = 3.0
# Clients mark the newest messages, if any.
_MARKED_MESSAGES: Final = 6
_MARK: Final = b'"cache_control"'


class CacheUse(NamedTuple):
    """Tokens of a prompt that were read from the cache, and written to it. None: the provider has none.

    ends: of the prefixes that a marked cache keeps.
    """

    read: int | None = None
    written: int | None = None
    ends: tuple[int, ...] = ()


NOT_CACHED: Final = CacheUse()


class CachedPrompt(NamedTuple):
    """What the provider has read last of the conversation. is_whole: a call that rides now repeats all of it
    and adds nothing but its own message. Otherwise the request that waits has added something, too.
    """

    tokens: int = 0
    use: CacheUse = NOT_CACHED
    is_whole: bool = False


def choose_cache(price: Price | None) -> CacheKind:
    """By what a provider asks for. Without a known price: automatic, as most are."""
    if price is None:
        return "automatic"
    if price.cache_write is not None:
        return "marked"
    has_cache = price.cached_input is not None and price.cached_input < price.input
    return "automatic" if has_cache else "none"


def use_cache(
    kind: CacheKind, prompt: int, shared: int, kept: Sequence[int], marked: Sequence[int]
) -> CacheUse:
    """shared: what it begins with in common with the prompt before, which left the prefixes `kept`.

    marked: the ends of its own prefixes with a mark.
    """
    if kind == "none":
        return NOT_CACHED
    if kind == "automatic":
        read = min(shared, prompt) // STEP_TOKENS * STEP_TOKENS
        return CacheUse(read if read >= LEAST_TOKENS else 0)
    valid = [end for end in kept if end <= min(shared, prompt)]
    read = max((end for end in valid if marked and end <= max(marked)), default=0)
    ends = sorted({*valid, *(end for end in marked if end >= LEAST_TOKENS)})
    return CacheUse(read, max(0, max(ends, default=0) - read) if marked else 0, tuple(ends))


class Sent(NamedTuple):
    """A request, as far as the next one is compared with it.

    sizes: of its messages, and everything before them, by our own count. recorded: the tokens that the
    recording has for it. raw: our count of it as it came.
    """

    turn: Turn
    view: View
    sizes: Sizes
    recorded: int | None
    raw: int
    sent: int = 0
    use: CacheUse = NOT_CACHED

    def measure(self, end: int) -> int:
        """Raw tokens of everything sent up to a position."""
        return measure(self.view, self.sizes.messages, self.sizes.environment, end)


class Measurer:
    """Of one recording under one policy. cache: of the provider, for a model."""

    def __init__(self, sizer: Sizer, cache: Callable[[str], CacheKind]) -> None:
        self._sizer = sizer
        self._cache = cache
        # The newest request of each branch.
        self._newest: dict[str, Sent] = {}
        # Tokens of the steps between requests, as they were recorded and by our count. The whole prompts are
        # no measure: recordings often lack the system prompt that was counted, too.
        self._recorded = self._counted = 0

    async def measure(self, turn: Turn, plan: Plan, usage: RecordedUsage | None) -> RequestRun:
        """What can be said of a request before its response."""
        before = self._find_before(turn)
        sizes = await self._sizer.measure(turn.received, turn.policy.estimator)
        conversation = turn.received.conversation
        end, floor = len(conversation.messages), conversation.opening_end
        raw = _measure_received(sizes, end)
        now = Sent(turn, plan.view, sizes, usage.prompt_tokens if usage is not None else None, raw)
        self._learn(before, now)
        received = raw if now.recorded is None else now.recorded
        convert = self._make_conversion(now)
        sent = max(1, convert(now.measure(end)))
        compared = _compare(before, now) if before is not None else _Compared()
        shared = min(before.sent if before is not None else 0, sent, convert(compared.sent))
        kept = before.use.ends if before is not None else ()
        marked = [convert(each) for each in _find_marked(now, end)]
        use = use_cache(self._cache(turn.model), sent, shared, kept, marked)
        self._newest.pop(turn.conversation_id, None)
        self._newest[turn.conversation_id] = now._replace(sent=sent, use=use)
        if len(self._newest) > _MOST_BRANCHES:
            del self._newest[next(iter(self._newest))]
        return msgspec.structs.replace(
            _describe(turn, plan),
            received=received,
            sent=sent,
            received_cached=min(received, convert(compared.received)),
            sent_cached=shared,
            cache_read=use.read,
            cache_written=use.written,
            environment=convert(sizes.environment),
            floor=convert(_measure_received(sizes, floor)),
            change=compared.change,
            is_rewritten=compared.is_rewritten,
        )

    def find_sent(self, turn: Turn, *, is_whole: bool = False) -> CachedPrompt:
        """The prompt before this one."""
        before = self._find_before(turn)
        return CachedPrompt(before.sent, before.use, is_whole) if before is not None else CachedPrompt()

    def _find_before(self, turn: Turn) -> Sent | None:
        """The request before on this branch; on a new branch that of the branch it left."""
        found = self._newest.get(turn.conversation_id)
        return found if found is not None or turn.parent_id is None else self._newest.get(turn.parent_id)

    def _learn(self, before: Sent | None, now: Sent) -> None:
        if before is None or before.recorded is None or now.recorded is None:
            return
        recorded, counted = now.recorded - before.recorded, now.raw - before.raw
        if min(recorded, counted) >= _LEAST_STEP_TOKENS:
            self._recorded += recorded
            self._counted += counted

    def _make_conversion(self, now: Sent) -> Callable[[int], int]:
        """Turns our count into tokens of the upstream, those included that we did not count. 0 stays 0:
        nothing in common is nothing in common.
        """
        if now.recorded is None:
            return lambda raw: raw
        learned = self._recorded / self._counted if self._counted else 1.0
        # It gives way where it would make more of our count than was recorded.
        ratio = min(max(learned, _SMALLEST_RATIO), _LARGEST_RATIO, now.recorded / max(1, now.raw))
        beyond = now.recorded - round(now.raw * ratio)
        return lambda raw: beyond + round(raw * ratio) if raw else 0


def _describe(turn: Turn, plan: Plan) -> RequestRun:
    """What the plan says of it."""
    thresholds = turn.thresholds
    return RequestRun(
        conversation=turn.conversation_id,
        purpose=turn.purpose,
        model=turn.model,
        messages=len(turn.received.conversation.messages),
        size_bytes=len(turn.raw_body),
        plan=plan.name,
        estimated_received=plan.received,
        estimated_sent=plan.sent,
        covers=plan.pivot.covers if plan.pivot is not None else 0,
        window=thresholds.window if thresholds is not None else None,
        soft=thresholds.soft if thresholds is not None else None,
        hard=thresholds.hard if thresholds is not None else None,
        warning=plan.warning,
        pruned=tuple(mark.position for mark in plan.new_batch.marks) if plan.new_batch is not None else (),
    )


def _measure_received(sizes: Sizes, end: int) -> int:
    """Raw tokens of everything up to a position, as it came."""
    return sizes.environment + sum(size.tokens for size in sizes.messages[:end])


class _Compared(NamedTuple):
    """A request beside the one before: raw tokens that both begin with, as they came and as they are sent.

    change: why the sent array does not begin with the one before. is_rewritten: whether the client's own does
    not.
    """

    received: int = 0
    sent: int = 0
    change: PrefixChange | None = None
    is_rewritten: bool = False


def _compare(before: Sent, now: Sent) -> _Compared:
    common = _count_common(before.turn, now.turn)
    old, new = before.view.pivot, now.view.pivot
    has_other_pivot = (old.key if old else None) != (new.key if new else None)
    # The scope stands for everything before the messages.
    has_same_scope = before.turn.scope == now.turn.scope
    is_rewritten = common < len(before.turn.received.conversation.messages) or not has_same_scope
    is_cut = has_other_pivot or (new is not None and common < new.covers)
    start = common
    if is_cut:
        start = min(common, *(pivot.opening_end for pivot in (old, new) if pivot is not None))
    first = _find_first_difference(before.view, now.view, start)
    change: PrefixChange | None = None
    if has_other_pivot:
        change = "compaction"
    elif is_rewritten:
        change = "history"
    elif first < common:
        change = "pruning"
    if not has_same_scope:
        return _Compared(0, 0, change, is_rewritten)
    if is_cut:
        sent = now.sizes.environment + measure_range(now.view, now.sizes.messages, 0, first)
    else:
        sent = now.measure(first)
    return _Compared(_measure_received(now.sizes, common), sent, change, is_rewritten)


def _count_common(before: Turn, now: Turn) -> int:
    """How many messages both begin with."""
    first, second = before.received.conversation.chain, now.received.conversation.chain
    shorter = min(len(first), len(second))
    if first[shorter - 1] == second[shorter - 1]:
        return shorter - 1
    # Links are equal up to the first difference, and never behind it.
    return bisect_left(range(1, shorter), True, key=lambda at: first[at] != second[at])


def _find_marked(now: Sent, end: int) -> Iterator[int]:
    """Raw tokens up to each place where the client marked what to keep in the cache."""
    received, view = now.turn.received, now.view
    conversation = received.conversation
    newest = [at for at in range(max(0, end - _MARKED_MESSAGES), end) if not conversation.is_gone(at)]
    marked = [at for at in newest if at >= view.start and _MARK in received.raw(at)]
    body = received.body
    leading = [body.raw(at) for at in range(len(conversation.leading))]
    fields = [body.field(place) for place in (body.envelope.tools_slice, body.envelope.system_slice)]
    if any(_MARK in raw for raw in (*leading, *fields)):
        yield now.sizes.environment
    yield from (now.measure(at + 1) for at in marked)


def _find_first_difference(before: View, now: View, common: int) -> int:
    """The first message that is marked in another way, at most `common`."""
    if before.marks == now.marks:
        return common
    changed = (
        position
        for position in before.marks.keys() | now.marks.keys()
        if is_sent(now.pivot, position) and before.marks.get(position) != now.marks.get(position)
    )
    return min(min(changed, default=common), common)
