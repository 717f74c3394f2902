"""One request on its way, with everything that was found out about it."""

import dataclasses
from collections.abc import Callable

import msgspec
from msgspec.structs import replace
from yarl import URL

from gateway.conversations.recognizer import Received
from gateway.core.history.head import Head
from gateway.core.history.purpose import Purpose
from gateway.core.limits.model_limits import Limits, has_long_window
from gateway.core.limits.thresholds import RequestSize, Thresholds, choose_thresholds
from gateway.core.policy import Policy
from gateway.core.sizing.estimate import Meter
from gateway.headers import RawHeaders
from gateway.settings import UpstreamSettings
from gateway.tenants import Tenant
from gateway.wire.sse import SseEvent

# Of the soft line.
_IN_SIGHT = 0.25


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """head: the nearest known one; `own_head`, where its usage counts for this request (same scope).

    url, raw_headers: where the conversation's own calls go, and the headers as received; a summary call goes
    the same way.
    thresholds: those of this request, its floor aside; None where nothing limits it.
    conversation, parent: the branch this request belongs to, and the one it left.
    purpose: what it is for, as far as can be told. session: how the client calls its session; a label.
    command: the instructions of a `/compact` that its last message is; None where it is a request.
    note: told each event of the answer, where a later request may name it.
    """

    tenant: Tenant
    upstream: UpstreamSettings
    url: URL
    raw_headers: RawHeaders
    received: Received
    policy: Policy
    limits: Limits
    thresholds: Thresholds | None
    scope: str
    head: Head | None
    conversation: str
    parent: str | None
    purpose: Purpose = "main"
    session: str | None = None
    command: str | None = None
    note: Callable[[SseEvent], None] | None = None

    @property
    def owner(self) -> str:
        return self.tenant.id

    @property
    def model(self) -> str:
        return self.received.body.envelope.model

    @property
    def meter(self) -> Meter:
        """Who counts this request, and how we do."""
        return Meter(self.upstream.name, self.model, self.policy.estimator)

    @property
    def requested(self) -> int | None:
        return self.received.body.envelope.requested_tokens

    @property
    def own_head(self) -> Head | None:
        """The head if its usage counts for this request: same scope, and upstream told something."""
        head = self.head
        return head if head is not None and head.scope == self.scope and head.prompt_tokens else None

    @property
    def has_long_window(self) -> bool:
        """Was the long window asked for?"""
        return has_long_window(self.model, self.raw_headers)

    def instructed(self, instructions: str, prompt: str | None) -> "Turn":
        """The same turn, with something more to say to who summarises it; prompt: in place of the
        instruction.
        """
        summary = self.policy.summary
        said = "\n\n".join(filter(None, (summary.instructions, instructions)))
        prompts = self.policy.prompts
        changed = dataclasses.replace(
            self.policy,
            summary=dataclasses.replace(summary, instructions=said),
            prompts=dataclasses.replace(prompts, instruction=prompt or prompts.instruction),
        )
        return replace(self, policy=changed)

    def under(self, limits: Limits) -> "Turn":
        """The same turn under other limits."""
        demand = RequestSize(
            requested=self.requested,
            growth=self.growth,
            minimum_reply=self.received.body.envelope.least_tokens,
            purpose=self.purpose,
        )
        return replace(self, limits=limits, thresholds=choose_thresholds(self.policy, limits, demand))

    def is_in_sight(self, total_tokens: int) -> bool:
        """Is the soft line so near that something may be decided in the next turns?"""
        return self.thresholds is not None and total_tokens >= _IN_SIGHT * self.thresholds.soft

    @property
    def growth(self) -> float:
        return self.head.growth_tokens if self.head is not None else 0.0
