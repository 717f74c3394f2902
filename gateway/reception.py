"""Makes a turn of a request: recognises its conversation, finds its head, and chooses its branch."""

import hashlib
import math
from typing import Final

from gateway.core.beta import has_long_window
from gateway.core.conversation import Conversation, count_replies
from gateway.core.errors import Unreadable
from gateway.core.head import Head, choose_scope
from gateway.core.limits import Limits
from gateway.core.lines import Demand, Lines, choose_lines
from gateway.core.policy import Policy
from gateway.discovery import Discovery
from gateway.entrance import Admission
from gateway.identity import Received, leading_digests
from gateway.limits import LimitsBook
from gateway.lru import Lru
from gateway.policies import Policies
from gateway.remembered_items import RememberedItems
from gateway.state import State
from gateway.turn import Turn
from gateway.wire.formats import WireFormat

_ID_DIGITS: Final = 16
# Growth per turn need not be known better than this to say when it is time to prepare.
_GROWTH_STEP_TOKENS: Final = 64
_MOST_LINES: Final = 4_096
_SCOPES_BYTES: Final = 1 << 18
_SCOPE_WEIGHT_BYTES: Final = 500


class Reception:
    def __init__(
        self,
        policies: Policies,
        remembered: RememberedItems,
        limits: LimitsBook,
        discovery: Discovery,
        state: State,
    ) -> None:
        self._policies = policies
        self._remembered = remembered
        self._limits = limits
        self._discovery = discovery
        self._state = state
        self._lines: dict[tuple[int | None, ...], Lines | None] = {}
        self._scopes: Lru[tuple[str | bytes, ...], str] = Lru(_SCOPES_BYTES)

    async def receive(self, admission: Admission, form: WireFormat, body: bytes) -> Turn:
        """Raises Unreadable for a body that is not of the format, or does not say all that was said."""
        tenant, upstream = admission.tenant, admission.upstream
        recognized = self._remembered.recognize(tenant.id, form, body)
        received = recognized.received
        if received.body.envelope.is_partial:
            raise Unreadable("a part of the history lies upstream")
        conversation, envelope = received.conversation, received.body.envelope
        scope = self._choose_scope(upstream.name, received)
        head = self._state.find_head(conversation, scope)
        if _is_missing_answers(conversation, head):
            head = await self._state.ask_head(tenant.id, conversation, scope) or head
        identity, parent = self._choose_branch(head, received)
        head = self._state.read_in_force(identity, conversation, head)
        policy = self._policies.choose(tenant, upstream.name, envelope.model)
        is_long = has_long_window(envelope.model, admission.raw_headers)
        limits = self._limits.read(tenant.id, upstream.name, envelope.model, has_long_window=is_long)
        if limits is None:
            limits = await self._load_limits(admission, envelope.model, is_long=is_long)
        growth = head.growth_tokens if head is not None else 0.0
        return Turn(
            tenant=tenant,
            upstream=upstream,
            url=admission.url,
            raw_headers=admission.raw_headers,
            received=received,
            policy=policy,
            limits=limits,
            lines=self._choose_lines(policy, limits, envelope.requested_tokens, growth),
            scope=scope,
            head=head,
            conversation=identity,
            parent=parent,
            note=recognized.note,
        )

    def _choose_scope(self, upstream: str, received: Received) -> str:
        """Remembered: it changes when the tools or the leading block do."""
        envelope, leading = received.body.envelope, received.conversation.leading
        key: tuple[str | bytes, ...] = (upstream, envelope.model, envelope.tools, envelope.preamble)
        key += tuple([message.digest for message in leading])
        scope = self._scopes.get(key)
        if scope is None:
            before = [envelope.preamble, *leading_digests(leading)]
            scope = choose_scope(upstream, envelope.model, before, envelope.tools)
            self._scopes.put(key, scope, _SCOPE_WEIGHT_BYTES + 80 * len(leading) + len(envelope.model))
        return scope

    async def _load_limits(self, admission: Admission, model: str, *, is_long: bool) -> Limits:
        """Now and then: reads what was learned, and sees that the upstream is asked about its models."""
        owner, upstream, headers = admission.tenant.id, admission.upstream, admission.raw_headers
        limits = await self._limits.load(owner, upstream.name, model, has_long_window=is_long)
        self._discovery.notice(owner, upstream, model, headers)
        return limits

    def _choose_lines(
        self, policy: Policy, limits: Limits, requested: int | None, growth: float
    ) -> Lines | None:
        """Remembered, with the growth rounded up; limits and policies live as long as this does."""
        step = math.ceil(growth / _GROWTH_STEP_TOKENS)
        key = (id(policy), limits.context, limits.input, limits.output, requested, step)
        if key not in self._lines:
            if len(self._lines) >= _MOST_LINES:
                self._lines.clear()
            demand = Demand(requested=requested, growth=float(step * _GROWTH_STEP_TOKENS))
            self._lines[key] = choose_lines(policy, limits, demand)
        return self._lines[key]

    def _choose_branch(self, head: Head | None, received: Received) -> tuple[str, str | None]:
        """The conversation's id and its parent's.

        A new id for a request that leaves its nearest head's continuation, and for a side call: one with
        other tools over the same history.
        """
        own = received.conversation.key.hex()
        tools = received.body.envelope.tools
        if head is None:
            # By its opening: the same one after a restart, wherever the conversation stands then.
            conversation = received.conversation
            return _make_id(conversation.chain[conversation.opening_end], tools), None
        fresh = _make_id(received.conversation.key, tools)
        is_side_call = head.tools != tools.hex()
        if head.key == own:
            return (fresh, None) if is_side_call else (head.conversation, head.parent)
        first = own if is_side_call else self._state.claim_continuation(head, own)
        goes_on = first == own or bytes.fromhex(first) in received.conversation.chain
        if is_side_call or not goes_on:
            return fresh, head.conversation
        return head.conversation, head.parent


def _is_missing_answers(conversation: Conversation, head: Head | None) -> bool:
    """Has the model answered between the head and this request, and memory knows nothing of it?"""
    added = conversation.messages[head.length if head else 0 :]
    return count_replies(added) > (1 if head is not None else 0)


def _make_id(key: bytes, tools: bytes) -> str:
    return hashlib.sha256(key + tools).hexdigest()[:_ID_DIGITS]
