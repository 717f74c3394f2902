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
from itertools import accumulate
from typing import Final, Literal, NamedTuple

from gateway.activity.series import PrefixChange
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.history.view import Size, View, is_sent, measure_pivot, measure_range
from gateway.core.money import Price
from gateway.core.sizing.usage import Usage
from gateway.planning.message_sizes import Sizer
from gateway.replay.recordings import RecordedUsage

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
_AS_RECEIVED: Final = View(None, {})
_NOTHING: Final = Size(0, 0)


class CacheUse(NamedTuple):
    """Tokens of a prompt that were read from the cache, and written to it. None: the provider has none.

    ends: of the prefixes that a marked cache keeps.
    """

    read: int | None = None
    written: int | None = None
    ends: tuple[int, ...] = ()

    def make_usage(self, prompt: int, output: int) -> Usage:
        return Usage(prompt, output, self.read, self.written)


NOT_CACHED: Final = CacheUse()


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


class Sized(NamedTuple):
    """The messages of a conversation, and everything before them, by our own count."""

    messages: list[Size]
    # The tokens of the first messages together: of none, of one, of two …
    sums: list[int]
    environment: int

    def grow(self, keep: int, added: Sequence[Size]) -> "Sized":
        """The first `keep` messages, then those that were added."""
        sums = accumulate((size.tokens for size in added), initial=self.sums[keep])
        return Sized([*self.messages[:keep], *added], [*self.sums[:keep], *sums], self.environment)

    def measure(self, view: View, end: int) -> int:
        """Raw tokens of everything sent up to a position."""
        pivot, start = view.pivot, min(view.start, end)
        before = self.environment
        if pivot is not None:
            before += measure_pivot(view, self.messages)
        if view.marks:
            return before + measure_range(view, self.messages, start, end)
        return before + self.sums[end] - self.sums[start]


class Sent(NamedTuple):
    """A request, as far as the next one is compared with it."""

    turn: Turn
    view: View
    sized: Sized
    # The tokens that the recording has for it, and our count of it as it came.
    recorded: int | None
    raw: int
    sent: int = 0
    use: CacheUse = NOT_CACHED


class _Conversion(NamedTuple):
    """Turns our count into tokens of the upstream. beyond: those of a prompt that we did not count."""

    ratio: float
    beyond: int

    @classmethod
    def make(cls, received: int, raw: int, ratio: float) -> "_Conversion":
        """The ratio gives way where it would make more of our count than was recorded."""
        ratio = min(ratio, received / max(1, raw))
        return cls(ratio, received - round(raw * ratio))

    def measure(self, raw: int) -> int:
        """0 stays 0: nothing in common is nothing in common."""
        return self.beyond + round(raw * self.ratio) if raw else 0


class Measured(NamedTuple):
    """See RequestRun."""

    received: int
    sent: int
    received_cached: int
    sent_cached: int
    change: PrefixChange | None
    is_rewritten: bool
    # Of the prompt as it came: before the messages, and what no compaction replaces.
    environment: int
    floor: int
    use: CacheUse


class TokenRatio(NamedTuple):
    """Recorded tokens beside those of our count, over the steps between requests.

    The whole prompts are no measure: recordings often lack the system prompt that was counted, too.
    """

    recorded: int = 0
    counted: int = 0

    @property
    def value(self) -> float:
        if not self.counted:
            return 1.0
        return min(max(self.recorded / self.counted, _SMALLEST_RATIO), _LARGEST_RATIO)

    def with_step(self, recorded: int, counted: int) -> "TokenRatio":
        if min(recorded, counted) < _LEAST_STEP_TOKENS:
            return self
        return TokenRatio(self.recorded + recorded, self.counted + counted)


class Measurer:
    """Of one recording under one policy. cache: of the provider, for a model."""

    def __init__(self, sizer: Sizer, cache: Callable[[str], CacheKind]) -> None:
        self._sizer = sizer
        self._cache = cache
        # The newest request of each branch.
        self._newest: dict[str, Sent] = {}
        self._ratio = TokenRatio()

    async def measure(self, turn: Turn, plan: Plan, usage: RecordedUsage | None) -> Measured:
        before = self._find_before(turn)
        common = count_common(before.turn, turn) if before is not None else 0
        sized = await self._size(turn, before, common)
        conversation = turn.received.conversation
        end = len(conversation.messages)
        raw, raw_sent = sized.measure(_AS_RECEIVED, end), sized.measure(plan.view, end)
        recorded = usage.prompt_tokens if usage is not None else None
        now = Sent(turn, plan.view, sized, recorded, raw)
        self._learn(before, now)
        received = raw if recorded is None else recorded
        conversion = _Conversion.make(received, raw, self._ratio.value if recorded is not None else 1.0)
        sent = max(1, conversion.measure(raw_sent))
        shared = shared_sent = 0
        change: PrefixChange | None = None
        is_rewritten = False
        if before is not None:
            as_received = before._replace(view=_AS_RECEIVED), now._replace(view=_AS_RECEIVED)
            shared = conversion.measure(count_shared(*as_received, common))
            shared_sent = min(before.sent, sent, conversion.measure(count_shared(before, now, common)))
            is_rewritten = common < _length(before) or not _has_same_scope(before, turn)
            change = find_change(before, now, common, is_rewritten=is_rewritten)
        kept = before.use.ends if before is not None else ()
        marked = [conversion.measure(each) for each in _find_marked(now, end)]
        use = use_cache(self._cache(turn.model), sent, shared_sent, kept, marked)
        self._keep(now._replace(sent=sent, use=use))
        return Measured(
            received,
            sent,
            min(received, shared),
            shared_sent,
            change,
            is_rewritten,
            conversion.measure(sized.environment),
            conversion.measure(sized.environment + sized.sums[conversation.opening_end]),
            use,
        )

    def find_sent(self, turn: Turn) -> tuple[int, CacheUse]:
        """The size of the prompt before this one, and what the provider's cache has of it."""
        before = self._find_before(turn)
        return (before.sent, before.use) if before is not None else (0, NOT_CACHED)

    def _find_before(self, turn: Turn) -> Sent | None:
        """The request before on this branch; on a new branch that of the branch it left."""
        found = self._newest.get(turn.conversation_id)
        return found if found is not None or turn.parent_id is None else self._newest.get(turn.parent_id)

    async def _size(self, turn: Turn, before: Sent | None, common: int) -> Sized:
        """Counts what is new."""
        received, estimator = turn.received, turn.policy.estimator
        if before is None or not _has_same_scope(before, turn):
            sizes = await self._sizer.measure(received, estimator)
            return Sized([], [0], sizes.environment).grow(0, sizes.messages)
        conversation = received.conversation
        added = [
            _NOTHING if conversation.is_gone(at) else self._sizer.measure_message(received, at, estimator)
            for at in range(common, len(conversation.messages))
        ]
        return before.sized.grow(common, added)

    def _keep(self, now: Sent) -> None:
        self._newest.pop(now.turn.conversation_id, None)
        self._newest[now.turn.conversation_id] = now
        if len(self._newest) > _MOST_BRANCHES:
            del self._newest[next(iter(self._newest))]

    def _learn(self, before: Sent | None, now: Sent) -> None:
        if before is not None and before.recorded is not None and now.recorded is not None:
            self._ratio = self._ratio.with_step(now.recorded - before.recorded, now.raw - before.raw)


def count_common(before: Turn, now: Turn) -> int:
    """How many messages both begin with."""
    first, second = before.received.conversation.chain, now.received.conversation.chain
    shorter = min(len(first), len(second))
    if first[shorter - 1] == second[shorter - 1]:
        return shorter - 1
    # Links are equal up to the first difference, and never behind it.
    return bisect_left(range(1, shorter), True, key=lambda at: first[at] != second[at])


def count_shared(before: Sent, now: Sent, common: int) -> int:
    """Raw tokens that both arrays begin with. common: messages that both histories begin with."""
    if not _has_same_scope(before, now.turn):
        return 0
    old, new = before.view.pivot, now.view.pivot
    pivots = [pivot for pivot in (old, new) if pivot is not None]
    if (old.key if old else None) != (new.key if new else None):
        start = min(common, *(pivot.opening_end for pivot in pivots))
    elif new is not None and common < new.covers:
        start = min(common, new.opening_end)
    else:
        return now.sized.measure(now.view, _find_first_difference(before.view, now.view, common))
    start = _find_first_difference(before.view, now.view, start)
    return now.sized.environment + measure_range(now.view, now.sized.messages, 0, start)


def find_change(before: Sent, now: Sent, common: int, *, is_rewritten: bool) -> PrefixChange | None:
    """Why the sent array does not begin with the one before."""
    old, new = before.view.pivot, now.view.pivot
    if (old.key if old else None) != (new.key if new else None):
        return "compaction"
    if is_rewritten:
        return "history"
    return "pruning" if _find_first_difference(before.view, now.view, common) < common else None


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
        yield now.sized.environment
    yield from (now.sized.measure(view, at + 1) for at in marked)


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


def _has_same_scope(before: Sent, turn: Turn) -> bool:
    """The scope stands for everything before the messages."""
    return before.turn.scope == turn.scope


def _length(sent: Sent) -> int:
    return len(sent.turn.received.conversation.messages)
