"""Makes a turn of a request: recognises its conversation, finds its head, and chooses its branch."""

import hashlib
import math
from collections.abc import Callable
from typing import Final

import msgspec

from gateway.conversations.cleared_results import recall
from gateway.conversations.recognizer import Received, leading_fingerprints
from gateway.conversations.stored_responses import StoredResponses
from gateway.conversations.turn import Turn
from gateway.core.errors import Unreadable
from gateway.core.history.conversation import Conversation, count_replies
from gateway.core.history.head import Head, fingerprint_scope
from gateway.core.history.purpose import LEADING_BYTES, NEWEST_BYTES, Purpose, find_purpose
from gateway.core.limits.model_limits import Limits, has_long_window
from gateway.core.limits.thresholds import RequestSize, Thresholds, choose_thresholds
from gateway.core.policy import Policy
from gateway.limits.book import LimitsBook
from gateway.limits.discovery import Discovery
from gateway.lru import Lru
from gateway.pipeline.admission import Route
from gateway.pipeline.commands import read_command
from gateway.state.heads import claim_continuation, find_continuation
from gateway.state.state import State
from gateway.tenants import Policies
from gateway.wire.request import Envelope
from gateway.wire.sse import SseEvent
from gateway.wire.wire_format import WireFormat

_ID_DIGITS: Final = 16
# Growth per turn need not be known better than this to say when it is time to prepare.
_GROWTH_STEP_TOKENS: Final = 64
_MOST_LINES: Final = 4_096
_SCOPES_BYTES: Final = 1 << 18
_SCOPE_WEIGHT_BYTES: Final = 500


class _Seen(msgspec.Struct, frozen=True):
    """What is known of a request by itself: head is the nearest one. note: as in Turn."""

    received: Received
    policy: Policy
    scope: str
    head: Head | None
    note: Callable[[SseEvent], None] | None


class _Branch(msgspec.Struct, frozen=True):
    """The conversation's id and its parent's, and what the request is for in it."""

    identity: str
    parent: str | None
    purpose: Purpose = "main"
    command: str | None = None


class TurnBuilder:
    def __init__(
        self,
        policies: Policies,
        remembered: StoredResponses,
        limits: LimitsBook,
        discovery: Discovery,
        state: State,
    ) -> None:
        self._policies = policies
        self._remembered = remembered
        self._limits = limits
        self._discovery = discovery
        self._state = state
        self._lines: dict[tuple[int | str | None, ...], Thresholds | None] = {}
        self._scopes: Lru[tuple[str | bytes, ...], str] = Lru(_SCOPES_BYTES)

    async def receive(self, admission: Route, form: WireFormat, body: bytes) -> Turn:
        """Raises Unreadable for a body that is not of the format, or does not say all that was said."""
        seen = self._recognize(admission, form, body)
        if _is_missing_answers(seen.received.conversation, seen.head):
            seen = await self._search(seen)
        purpose = _read_purpose(seen.received, is_agent=admission.is_agent)
        command = read_command(seen.received) if seen.policy.commands else None
        claim = claim_continuation if command is None else find_continuation
        identity, parent = self._choose_branch(seen.head, seen.received, purpose, claim)
        limits = self._read_limits(admission, seen.received)
        if limits is None:
            limits = await self._load_limits(admission, seen.received)
        return self._make_turn(admission, seen, _Branch(identity, parent, purpose, command), limits)

    async def look(self, admission: Route, form: WireFormat, body: bytes) -> Turn:
        """The same for a request that is no step of its conversation, and leaves no trace in it."""
        seen = self._recognize(admission, form, body)
        if _is_missing_answers(seen.received.conversation, seen.head):
            seen = await self._search(seen)
        head = seen.head
        branch = _Branch(head.conversation, head.parent) if head is not None else _Branch("", None)
        limits = self._read_limits(admission, seen.received)
        if limits is None:
            limits = await self._load_limits(admission, seen.received)
        return self._make_turn(admission, seen, branch, limits)

    def _recognize(self, admission: Route, form: WireFormat, body: bytes) -> _Seen:
        owner, upstream = admission.tenant.id, admission.upstream.name
        recognized = self._remembered.recognize((owner, upstream), form, body)
        received = recognized.received
        if received.body.envelope.is_partial:
            raise Unreadable("a part of the history lies upstream")
        policy = self._policies.choose(admission.tenant, upstream, received.body.envelope.model)
        conversation, scope = received.conversation, self._choose_scope(upstream, received)
        head = self._state.heads.find(conversation, scope)
        return _Seen(received, policy, scope, head, recognized.note)

    async def _search(self, seen: _Seen) -> _Seen:
        """For a head that memory does not know: in the store, then behind what the client cleared."""
        received, scope, head = seen.received, seen.scope, seen.head
        conversation = received.conversation
        head = await self._state.heads.load(received.tenant, conversation, scope) or head
        if head is not None:
            await self._state.tasks.load_marker(received.tenant, head.key)
        if _is_missing_answers(conversation, head):
            placeholder = seen.policy.pruning.placeholder
            head = await recall(self._state, received, scope, head, placeholder) or head
        return msgspec.structs.replace(seen, head=head)

    def _make_turn(self, admission: Route, seen: _Seen, branch: _Branch, limits: Limits) -> Turn:
        tenant, upstream = admission.tenant, admission.upstream
        received, policy = seen.received, seen.policy
        envelope = received.body.envelope
        head = self._state.pivots.apply_in_force(branch.identity, received.conversation, seen.head)
        growth = head.growth_tokens if head is not None else 0.0
        return Turn(
            tenant=tenant,
            upstream=upstream,
            url=admission.head.url,
            raw_headers=admission.raw_headers,
            received=received,
            policy=policy,
            limits=limits,
            thresholds=self._choose_thresholds(policy, limits, envelope, growth, branch.purpose),
            scope=seen.scope,
            head=head,
            conversation=branch.identity,
            parent=branch.parent,
            purpose=branch.purpose,
            session=admission.session,
            command=branch.command,
            note=seen.note,
        )

    def _choose_scope(self, upstream: str, received: Received) -> str:
        """Remembered: it changes when the tools or the leading block do."""
        envelope, leading = received.body.envelope, received.conversation.leading
        key: tuple[str | bytes, ...] = (upstream, envelope.model, envelope.tools, envelope.system)
        key += tuple([message.fingerprint for message in leading])
        scope = self._scopes.get(key)
        if scope is None:
            before = [envelope.system, *leading_fingerprints(leading)]
            scope = fingerprint_scope(upstream, envelope.model, before, envelope.tools)
            self._scopes.put(key, scope, _SCOPE_WEIGHT_BYTES + 80 * len(leading) + len(envelope.model))
        return scope

    def _read_limits(self, admission: Route, received: Received) -> Limits | None:
        """None where they were not looked up lately."""
        owner, upstream, model = received.tenant, admission.upstream, received.body.envelope.model
        is_long = has_long_window(model, admission.raw_headers)
        return self._limits.read(owner, upstream.name, model, has_long_window=is_long)

    async def _load_limits(self, admission: Route, received: Received) -> Limits:
        """Now and then: reads what was learned, and sees that the upstream is asked about its models."""
        owner, upstream, model = received.tenant, admission.upstream, received.body.envelope.model
        headers = admission.raw_headers
        is_long = has_long_window(model, headers)
        limits = await self._limits.load(owner, upstream.name, model, has_long_window=is_long)
        self._discovery.notice(owner, upstream, model, headers)
        return limits

    def _choose_thresholds(
        self, policy: Policy, limits: Limits, envelope: Envelope, growth: float, purpose: Purpose
    ) -> Thresholds | None:
        """Remembered, with the growth rounded up; limits and policies live as long as this does."""
        step = math.ceil(growth / _GROWTH_STEP_TOKENS)
        requested, least = envelope.requested_tokens, envelope.least_tokens
        key = (id(policy), limits.context, limits.input, limits.output, requested, least, step, purpose)
        try:
            return self._lines[key]
        except KeyError:
            pass
        if len(self._lines) >= _MOST_LINES:
            self._lines.clear()
        rounded = float(step * _GROWTH_STEP_TOKENS)
        demand = RequestSize(requested=requested, growth=rounded, minimum_reply=least, purpose=purpose)
        lines = self._lines[key] = choose_thresholds(policy, limits, demand)
        return lines

    def _choose_branch(
        self, head: Head | None, received: Received, purpose: Purpose, claim: Callable[[Head, str], str]
    ) -> tuple[str, str | None]:
        """The conversation's id and its parent's. claim: who goes on from the head.

        A new id for a request that leaves its nearest head's continuation, and for a side call: one with
        other tools over the same history, or the client's own summary of it.
        """
        chain, tools = received.conversation.chain, received.body.envelope.tools
        if head is None:
            # By its opening: the same one after a restart, wherever the conversation stands then.
            return _make_id(chain[received.conversation.opening_end], tools), None
        own = chain.last.hex()
        is_side_call = head.tools != tools.hex() or purpose == "summary"
        if head.key == own:
            return (
                (head.conversation, head.parent) if not is_side_call else (_make_id(chain.last, tools), None)
            )
        first = own if is_side_call else claim(head, own)
        goes_on = first == own or bytes.fromhex(first) in chain
        if is_side_call or not goes_on:
            return _make_id(chain.last, tools), head.conversation
        return head.conversation, head.parent


def _read_purpose(received: Received, *, is_agent: bool) -> Purpose:
    """Looks at beginnings only. Who offers tools in a call of its own kind says so in its newest message."""
    body, conversation = received.body, received.conversation
    leading = b""
    if not body.envelope.tools:
        leading = body.field(body.envelope.system_slice) or (body.raw(0) if conversation.leading else b"")
    is_asking = conversation.messages.length > 0 and conversation.messages.last.role == "user"
    newest = body.raw(len(body.places) - 1) if is_asking else b""
    return find_purpose(leading[:LEADING_BYTES], newest[:NEWEST_BYTES], is_agent=is_agent)


def _is_missing_answers(conversation: Conversation, head: Head | None) -> bool:
    """Has the model answered between the head and this request, and memory knows nothing of it?"""
    added = conversation.messages.since(head.length if head else 0)
    return count_replies(added) > (1 if head is not None else 0)


def _make_id(key: bytes, tools: bytes) -> str:
    return hashlib.sha256(key + tools).hexdigest()[:_ID_DIGITS]
