"""Everything that the decisions about one request look at."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from gateway.core.economy import UNCACHED, Rates
from gateway.core.history.conversation import Conversation
from gateway.core.history.head import BranchLedger
from gateway.core.history.pivot import Batch, Pivot, Recall
from gateway.core.history.view import View, make_view
from gateway.core.limits.model_limits import Limits
from gateway.core.limits.thresholds import RequestSize, Thresholds, choose_thresholds
from gateway.core.policy import Policy
from gateway.core.refusal import Overflow
from gateway.core.sizing.calibrated_sizes import CalibratedSizes, calibrate_sizes, estimate_view
from gateway.core.sizing.estimate import Estimate, Known, MeasuredRequest, Sizes, average_turn

T = TypeVar("T")


class lazy(Generic[T]):
    """A value that is computed when it is first asked for, and then kept in its object. That needs a
    `__dict__`, and may be frozen.

    Like `functools.cached_property`, which in Python 3.11 has one lock for all objects: while a thread
    computes a value of one request, the event loop would wait for the value of another. Two threads that ask
    the same object at once may compute it twice.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, instance: object, owner: type) -> T:
        # From the second time on, Python finds the value in the object, and does not come here.
        value = self._compute(instance)
        instance.__dict__[self._compute.__name__] = value
        return value


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedRequest:
    """What upstream has refused as too long, and the numbers of its refusal."""

    view: View
    overflow: Overflow


@dataclass(frozen=True, kw_only=True)
class Situation:
    """One request, measured."""

    owner: str
    conversation: Conversation
    sizes: Sizes
    policy: Policy
    limits: Limits
    # The length of the reply that the client asked for, in tokens.
    requested: int | None
    # Recent growth of the conversation, in tokens per turn.
    growth: float
    known: Known
    # The pivot that the nearest head was sent with.
    sticky: Pivot | None
    # Every eligible pivot; the one that covers most comes last.
    pivots: Sequence[Pivot]
    # The active mark batches.
    batches: Sequence[Batch]
    # The active recalls.
    recalls: Sequence[Recall] = ()
    # One of them that this request is the first to be sent with.
    new_recall: Recall | None = None
    # False if the policy forbids compactions, or if one has failed for this request.
    may_compact: bool
    # The reply is never clamped below this many tokens.
    minimum_reply: int = 0
    # The same as may_compact, for digests.
    may_digest: bool = False
    # A compaction of this chain is in progress.
    is_preparing: bool = False
    # A part of the conversation was compacted for this very request.
    has_compacted: bool = False
    # Set if sizes and limits include bytes and pictures; the reply is clamped by these instead.
    in_tokens: MeasuredRequest | None = None
    # What kinds of tokens cost beside each other, and what the branch remembers of its responses.
    rates: Rates = UNCACHED
    ledger: BranchLedger | None = None
    # Set if this request was refused: only then may a message of the client's be cut.
    refused: RefusedRequest | None = None
    # Long enough after the last response that no provider still has the prefix in its cache.
    is_cold: bool = False

    @lazy
    def calibrated(self) -> CalibratedSizes:
        """True tokens of each message, as well as they are known."""
        return calibrate_sizes(self.conversation, self.sizes, self.known)

    @lazy
    def average_turn(self) -> float:
        """Tokens that a turn adds; steadier than `growth`."""
        return average_turn(self.conversation, self.calibrated.messages)

    @lazy
    def opening_tokens(self) -> int:
        """True tokens of the opening as it is sent."""
        return int(self.calibrated.shown(make_view(None, self.batches), 0, self.conversation.opening_end))

    @lazy
    def cut_positions(self) -> frozenset[int]:
        """Messages that are sent cut, because upstream has refused them whole."""
        return frozenset(mark.position for batch in self.batches if batch.is_cut for mark in batch.marks)

    @lazy
    def size(self) -> RequestSize:
        """What the thresholds depend on, with the floor that no compaction can remove."""
        size = RequestSize(requested=self.requested, growth=self.growth, minimum_reply=self.minimum_reply)
        thresholds = choose_thresholds(self.policy, self.limits, size)
        if thresholds is None:
            return size
        opening = self._choose_opening(thresholds) if self.policy.keep.opening else 0
        floor = int(self.calibrated.environment) + min(self.opening_tokens, opening)
        return replace(size, turn=self.average_turn, floor=floor)

    @lazy
    def thresholds(self) -> Thresholds | None:
        """None if no limit is known."""
        thresholds = choose_thresholds(self.policy, self.limits, self.size)
        return thresholds and replace(thresholds, opening=self._choose_opening(thresholds))

    def _choose_opening(self, thresholds: Thresholds) -> int:
        """The whole opening, or its share of the window if it had to be cut."""
        has_cut = any(position < self.conversation.opening_end for position in self.cut_positions)
        return thresholds.opening if has_cut else max(thresholds.opening, self.opening_tokens)

    def view(self, pivot: Pivot | None, batches: Sequence[Batch]) -> View:
        """With the active recalls."""
        return make_view(pivot, batches, self.recalls)

    def estimate(self, view: View) -> Estimate:
        """What upstream will count if this view is sent."""
        return estimate_view(self.conversation, self.calibrated, self.known, view)

    def count_with(self, pivot: Pivot | None) -> int:
        """True tokens of what is sent with this pivot and the active marks."""
        return self.estimate(self.view(pivot, self.batches)).tokens

    def count_after(self, base: Pivot | None, pivot: Pivot) -> int:
        """True tokens of what is sent with a new pivot in place of its base.

        The messages are counted by us, and the upstream may count otherwise. So what it counted with the base
        shrinks by the same share as our own count.
        """
        before = self.calibrated.total(self.view(base, self.batches))
        after = self.calibrated.total(self.view(pivot, self.batches))
        return int(self.count_with(base) * after / max(before, 1))

    def estimate_tokens(self, view: View) -> Estimate:
        """The same in tokens alone, whatever bytes and pictures weigh."""
        if (true := self.in_tokens) is None:
            return self.estimate(view)
        calibrated = calibrate_sizes(self.conversation, true.sizes, true.known)
        return estimate_view(self.conversation, calibrated, true.known, view)
