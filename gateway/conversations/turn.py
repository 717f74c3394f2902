"""One request, with everything that was found out about it."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace
from yarl import URL

from gateway.conversations.reading import Received
from gateway.core.compaction.situation import RefusedRequest
from gateway.core.economy import UNCACHED, Rates
from gateway.core.history.ends import HistorySource
from gateway.core.history.head import Head, is_comparable
from gateway.core.history.purpose import Purpose
from gateway.core.limits.model_limits import Limits, has_long_window
from gateway.core.limits.thresholds import RequestSize, Thresholds, choose_thresholds
from gateway.core.policy import Policy
from gateway.core.sizing.estimate import Meter
from gateway.headers import RawHeaders, UpstreamHead
from gateway.logs.fields import FieldValue, name_fields
from gateway.settings import UpstreamSettings
from gateway.tenants import Tenant
from gateway.wire.reading import OnEvent, ResponseDocument
from gateway.wire.sse import SseEvent

if TYPE_CHECKING:
    from gateway.conversations.branches import Branch

# From this share of the soft threshold on, something may be decided within a few turns.
_NEAR = 0.25
# The turn, its envelope, its conversation and a head, without what grows with the request.
_TURN_WEIGHT_BYTES = 4_000


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    tenant: Tenant
    upstream: UpstreamSettings
    # The head of the request as it goes upstream.
    upstream_head: UpstreamHead
    # The headers as received; a summary call of this conversation repeats them.
    raw_headers: RawHeaders
    # The memory that both take.
    head_bytes: int = 0
    # The body as received, in its content encoding.
    raw_body: bytes
    received: Received
    policy: Policy
    limits: Limits
    # Those of this request, without its floor; None if no limit is known.
    thresholds: Thresholds | None
    # What its kinds of tokens cost beside each other.
    rates: Rates = UNCACHED
    # Fingerprint of everything outside the messages that a prompt's size depends on.
    scope: str
    # See trimmed_histories.make_source.
    source: HistorySource
    # The nearest known head; its usage counts for this request only if it is also the `own_head`.
    head: Head | None
    # The model has replied in this history without a known head after it, and no pivot stands for a part of
    # it: the history is new to the gateway, or its client has changed it.
    is_unrecognized: bool = False
    # The store has not said what it knows of this history: a summary may be there.
    is_unsure: bool = False
    # The newest deletion when its history was looked up, see `Memory.was_purged`.
    purges: int = 0
    # The branch that this request belongs to, and the one that this branch left.
    conversation_id: str
    parent_id: str | None
    # What memory has of that branch; None for a request that only asks for its size.
    branch: "Branch | None" = None
    # What the request is for, by its words and headers.
    purpose: Purpose = "main"
    # The client's name for its session; a label, never a key.
    session: str | None = None
    # The instructions of a `/compact` in its last message; None if that is not a command.
    command: str | None = None
    # Whether the client asks what the conversation cost so far.
    wants_economics: bool = False
    # Set if upstream has refused the request as too long, and it is planned again.
    refused: RefusedRequest | None = None
    # Called with each event of the response, if a later request may name that response.
    on_event: OnEvent | None = None
    # In the same case called before the request is sent: with what the gateway changed, and the conversation.
    note_sent: Callable[[str, str, Callable[[], bool]], None] | None = None

    @property
    def owner(self) -> str:
        """The id of the tenant, under which all state is kept."""
        return self.tenant.id

    @property
    def model(self) -> str:
        return self.received.body.envelope.model

    @property
    def url(self) -> URL:
        """Where the conversation's requests go; its summary calls go there too."""
        return self.upstream_head.url

    @property
    def meter(self) -> Meter:
        """The model that counts this request's tokens, and the estimator that the gateway counts with."""
        return Meter(self.upstream.name, self.model, self.policy.estimator)

    @property
    def requested_tokens(self) -> int | None:
        """The longest reply that the client asks for."""
        return self.received.body.envelope.requested_tokens

    @property
    def own_head(self) -> Head | None:
        """The head, if its usage counts for this request: the same scope, as much of the history, and usage
        that upstream reported.
        """
        head = self.head
        if head is None or head.scope != self.scope or not head.prompt_tokens:
            return None
        return head if is_comparable(head, self.received.conversation) else None

    @property
    def has_long_window(self) -> bool:
        """Whether the client asks for the long window."""
        return has_long_window(self.model, self.raw_headers)

    @property
    def growth(self) -> float:
        """Recent growth in tokens per turn."""
        return self.head.growth_tokens if self.head is not None else 0.0

    @property
    def weight_bytes(self) -> int:
        """What the turn takes in memory, nearly all of it its body and the facts of its messages."""
        weight = _TURN_WEIGHT_BYTES + self.head_bytes
        weight += len(self.received.body.data) + self.received.facts_bytes
        return weight if self.raw_body is self.received.body.data else weight + len(self.raw_body)

    def is_near(self, total_tokens: int) -> bool:
        """Whether the soft threshold is so near that something may be decided in the next turns."""
        return self.thresholds is not None and total_tokens >= _NEAR * self.thresholds.soft

    def with_limits(self, limits: Limits) -> "Turn":
        """The same turn under other limits."""
        size = RequestSize(
            requested=self.requested_tokens,
            growth=self.growth,
            minimum_reply=self.received.body.envelope.minimum_reply_tokens,
            purpose=self.purpose,
        )
        return replace(self, limits=limits, thresholds=choose_thresholds(self.policy, limits, size))

    def with_instructions(self, instructions: str, prompt: str | None) -> "Turn":
        """The same turn with more instructions for its summary.

        prompt: in place of the policy's instruction; None, or a blank one, keeps that one.
        """
        policy, prompts = self.policy, self.policy.prompts
        said = "\n\n".join(filter(None, (policy.summary.instructions, _without_surrogates(instructions))))
        if prompt and prompt.strip():
            prompts = dataclasses.replace(prompts, instruction=_without_surrogates(prompt))
        summary = dataclasses.replace(policy.summary, instructions=said)
        return replace(self, policy=dataclasses.replace(policy, summary=summary, prompts=prompts))


def _without_surrogates(text: str) -> str:
    """A policy is checked when it is made, and has no halves of characters; JSON of clients may."""
    return text.encode("utf-8", "replace").decode("utf-8")


def chain(first: OnEvent | None, second: OnEvent) -> OnEvent:
    """Both, in this order."""
    if first is None:
        return second

    def both(event: SseEvent, documents: list[ResponseDocument]) -> None:
        first(event, documents)
        second(event, documents)

    return both


def name_ids(turn: Turn) -> Mapping[str, Mapping[str, FieldValue]]:
    """The ids of a log line about a turn."""
    return name_fields(
        conversation=turn.conversation_id, tenant=turn.tenant.display_name, upstream=turn.upstream.name
    )
