"""Builds the turn of a request: recognizes its conversation, finds its head, and chooses its branch."""

import hashlib
import math
from typing import Final

import msgspec

from gateway.activity.prices import PriceList
from gateway.conversations.branches import Branch
from gateway.conversations.history_search import HistorySearch, KnownHistory, Subject
from gateway.conversations.reading import Received
from gateway.conversations.stored_responses import ResponseRecorder, StoredResponses
from gateway.conversations.trimmed_histories import make_source
from gateway.conversations.turn import Turn
from gateway.core.compaction.manual import may_be_command, parse_compact
from gateway.core.economy import choose_rates, find_ledger
from gateway.core.errors import BeyondBounds, Unreadable
from gateway.core.history.conversation import Conversation
from gateway.core.history.ends import HistorySource
from gateway.core.history.head import fingerprint_scope
from gateway.core.history.purpose import LEADING_BYTES, NEWEST_BYTES, Purpose, find_purpose
from gateway.core.limits.model_limits import Limits, has_long_window
from gateway.core.limits.thresholds import RequestSize, Thresholds, choose_thresholds
from gateway.core.money import Price
from gateway.core.policy import Policy
from gateway.core.sizing.estimate import Meter
from gateway.http.request import ReceivedBody
from gateway.limits.book import LimitsBook, ServedModel
from gateway.limits.discovery import Discovery
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.pipeline.admission import Route
from gateway.state import State
from gateway.state.heads import claim_continuation, find_continuation
from gateway.store.interface import LATEST, SOON
from gateway.tenants import Policies
from gateway.wire.canonical import without_ephemeral_blocks
from gateway.wire.references import StoredHistory

_ID_DIGITS: Final = 16
# Nothing is compacted of a request that has fewer bytes for each token of its window.
_LEAST_BYTES_PER_TOKEN: Final = 0.5
# Growth per turn is rounded up to this step: it only decides when to prepare a compaction.
_GROWTH_STEP_TOKENS: Final = 64
# A few thousand entries each.
_THRESHOLDS_BYTES: Final = 1 << 21
_THRESHOLDS_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 600
_SETTINGS_BYTES: Final = 1 << 21
_SETTING_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 1_000
# Every message with a "/compact" contains these bytes, however a client writes it as JSON.
_COMMAND_TRACE: Final = b"compact"
# A command with its longest instructions and all reminders that a client may add is far shorter.
_LONGEST_COMMAND_BYTES: Final = 1 << 20
_SettingKey = tuple[str | bytes | bool | None, ...]


class _Setting(msgspec.Struct, frozen=True):
    """What is the same for all requests of a conversation, until its tools or its leading block change."""

    policy: Policy
    # Both as in Turn.
    scope: str
    source: HistorySource
    served: ServedModel
    meter: Meter
    # None if it is not known.
    price: Price | None
    # Under which limits of its model are learned.
    learned_name: str


class _Recognized(msgspec.Struct, frozen=True):
    """What is known about a request before its branch is chosen."""

    # As it came, with all its messages.
    received: Received
    known: KnownHistory
    # Is told about the response, if a later request may name it.
    recorder: ResponseRecorder | None
    setting: _Setting
    limits: Limits
    # The newest deletion before the history was looked up.
    purges: int


class _Chosen(msgspec.Struct, frozen=True):
    """Where a request belongs in its conversation, and what it is for there. Fields as in Turn."""

    conversation_id: str = ""
    parent_id: str | None = None
    branch: Branch | None = None
    purpose: Purpose = "main"
    command: str | None = None


class TurnBuilder:
    def __init__(
        self,
        policies: Policies,
        responses: StoredResponses,
        limits: LimitsBook,
        discovery: Discovery,
        state: State,
        prices: PriceList,
    ) -> None:
        self._policies = policies
        self._responses = responses
        self._branches = responses.branches
        self._limits = limits
        self._discovery = discovery
        self._state = state
        self._prices = prices
        self._search = HistorySearch(state)
        self._thresholds: Lru[tuple[int | str | None, ...], Thresholds | None] = Lru(_THRESHOLDS_BYTES)
        self._settings: Lru[_SettingKey, _Setting] = Lru(_SETTINGS_BYTES)

    async def build(self, route: Route, body: ReceivedBody) -> Turn | StoredHistory | None:
        """None if the body is not of the format, or if a part of its history is stored upstream: how it is
        named, if its client has the whole history, and its policy would compact that.

        Raises BeyondBounds for a body that holds more than is read.
        """
        recognized = await self._recognize(route, body.plain)
        if not isinstance(recognized, _Recognized):
            return recognized
        known = recognized.known
        purpose = _choose_purpose(known.received, is_agent=route.is_agent)
        command = _find_command(known.received) if recognized.setting.policy.commands else None
        identity, parent = self._choose_branch(
            known, route.session, is_summary=purpose == "summary", is_command=command is not None
        )
        branch = self._branches.keep(recognized.received, identity, recognized.purges)
        return self._make_turn(route, body, recognized, _Chosen(identity, parent, branch, purpose, command))

    async def build_for_count(self, route: Route, body: ReceivedBody) -> Turn | None:
        """The same for a request that only asks for its size. Nothing about its conversation is changed."""
        recognized = await self._recognize(route, body.plain)
        if not isinstance(recognized, _Recognized):
            return None
        head = recognized.known.head
        chosen = _Chosen(head.conversation, head.parent) if head is not None else _Chosen()
        return self._make_turn(route, body, recognized, chosen)

    async def _recognize(self, route: Route, data: bytes) -> _Recognized | StoredHistory | None:
        if route.format is None:
            return None
        # Whatever is deleted from here on, the request may hold already.
        purges = self._state.memory.purges
        try:
            received, recorder = await self._responses.read(
                route.tenant.id, route.format, data, route.upstream.name
            )
        except BeyondBounds:
            raise
        except Unreadable:
            return None
        setting = self._choose_setting(route, received)
        if received.body.envelope.is_partial:
            history = route.format.stored_history
            if history is None or not history.is_replayed or not setting.policy.compaction.auto:
                return None
            used = await self._responses.lanes.run(route.tenant.id, len(data), history.find_names, data)
            return history if used is not None and used.previous is not None else None
        limits = await self._load_limits(route, setting.served)
        window = min(filter(None, (limits.context, limits.input)), default=0)
        # A small request may as well pass as it came if the store is away. A large one would need a new
        # summary, which takes longer, and costs money.
        is_large = window and len(data) > window * _LEAST_BYTES_PER_TOKEN
        subject = Subject(
            received,
            setting.scope,
            setting.source,
            setting.meter,
            setting.learned_name,
            setting.policy.pruning.placeholder,
            LATEST if is_large else SOON,
        )
        known = await self._search.find(subject)
        return _Recognized(received, known, recorder, setting, limits, purges)

    def _make_turn(self, route: Route, body: ReceivedBody, recognized: _Recognized, chosen: _Chosen) -> Turn:
        known, setting, recorder = recognized.known, recognized.setting, recognized.recorder
        received, limits, policy = known.received, recognized.limits, setting.policy
        pivots = self._state.pivots
        head = pivots.apply_manual(received.conversation, known.head)
        growth = head.growth_tokens if head is not None else 0.0
        return Turn(
            tenant=route.tenant,
            upstream=route.upstream,
            upstream_head=route.head,
            raw_headers=route.raw_headers,
            head_bytes=route.weight_bytes,
            raw_body=body.raw,
            received=received,
            policy=policy,
            limits=limits,
            thresholds=self._choose_thresholds(policy, limits, received, growth, chosen.purpose),
            rates=choose_rates(setting.price, find_ledger(head, setting.scope)),
            scope=setting.scope,
            source=setting.source,
            head=head,
            is_unrecognized=known.lacks_replies and not pivots.list_on_chain(received.conversation),
            is_unsure=known.is_unsure,
            purges=recognized.purges,
            conversation_id=chosen.conversation_id,
            parent_id=chosen.parent_id,
            branch=chosen.branch,
            purpose=chosen.purpose,
            session=route.session,
            command=chosen.command,
            wants_economics=route.wants_economics,
            on_event=recorder.note if recorder is not None else None,
            note_sent=recorder.note_sent if recorder is not None else None,
        )

    async def _load_limits(self, route: Route, served: ServedModel) -> Limits:
        """Every few minutes they are looked up again, and the upstream may be asked for its model list."""
        limits = self._limits.find(served)
        if limits is None:
            self._discovery.notice(served.owner, route.upstream, served.model, route.raw_headers)
            limits = await self._limits.load(served)
        return limits

    def _choose_setting(self, route: Route, received: Received) -> _Setting:
        """The setting of a request, cached by everything that it depends on."""
        envelope, upstream = received.body.envelope, route.upstream.name
        model, tools, system = envelope.model, envelope.tools, envelope.system
        is_long = route.has_betas and has_long_window(model, route.raw_headers)
        leading = [message.fingerprint for message in received.conversation.leading]
        key: _SettingKey = (
            received.owner,
            upstream,
            route.session,
            model,
            is_long,
            tools,
            system,
            *leading,
        )
        setting = self._settings.get(key)
        if setting is None:
            policy = self._policies.choose(route.tenant, upstream, model)
            served = ServedModel(received.owner, upstream, model, is_long)
            setting = _Setting(
                policy=policy,
                scope=fingerprint_scope(upstream, model, [system, *leading], tools),
                source=make_source(upstream, route.session, model, tools, is_alone=self._state.is_alone),
                served=served,
                meter=Meter(upstream, model, policy.estimator),
                price=self._prices.find(model, upstream, received.owner),
                learned_name=served.learned_name,
            )
            weight = _SETTING_WEIGHT_BYTES + 80 * len(leading) + weigh_texts(model, route.session)
            self._settings.put(key, setting, weight)
        return setting

    def _choose_thresholds(
        self, policy: Policy, limits: Limits, received: Received, growth: float, purpose: Purpose
    ) -> Thresholds | None:
        """Cached, with the growth rounded up. Policies are never freed, so `id` tells them apart."""
        if not limits.context and not limits.input:
            return None
        envelope, step = received.body.envelope, math.ceil(growth / _GROWTH_STEP_TOKENS)
        requested, minimum = envelope.requested_tokens, envelope.minimum_reply_tokens
        key = (id(policy), limits.context, limits.input, limits.output, requested, minimum, step, purpose)
        thresholds = self._thresholds.get(key)
        if thresholds is None:
            size = RequestSize(
                requested=requested,
                growth=float(step * _GROWTH_STEP_TOKENS),
                minimum_reply=minimum,
                purpose=purpose,
            )
            thresholds = choose_thresholds(policy, limits, size)
            self._thresholds.put(key, thresholds, _THRESHOLDS_WEIGHT_BYTES)
        return thresholds

    def _choose_branch(
        self, known: KnownHistory, session: str | None, *, is_summary: bool, is_command: bool
    ) -> tuple[str, str | None]:
        """The ids of the conversation and of the one that it branched off.

        A request without a known head begins a conversation, and so does one whose messages were those of
        another session so far. It also gets an id of its own if another request continued from its head
        first, and if it is a side call: one with other tools over the same history, or the client's own
        summary of it.
        """
        head, conversation, tools = (
            known.head,
            known.received.conversation,
            known.received.body.envelope.tools,
        )
        if head is None or (session is not None and head.session not in (None, session)):
            return self._begin(conversation, tools, session), None
        own = conversation.key.hex()
        is_new = is_summary or head.tools != tools.hex()
        if head.key == own:
            return (_make_id(conversation.key, tools), None) if is_new else (head.conversation, head.parent)
        # A command does not continue its conversation; the next request may still do so.
        follow = find_continuation if is_command else claim_continuation
        if is_new or not _came_first(follow(head, own), conversation):
            return _make_id(conversation.key, tools), head.conversation
        return head.conversation, head.parent

    def _begin(self, conversation: Conversation, tools: bytes, session: str | None) -> str:
        """The id of a conversation without a known head.

        It is made from the opening, so it is the same after a restart. Where another conversation has begun
        with that, it is made from all that was sent.
        """
        opening = _make_id(conversation.chain[conversation.opening_end], tools, session)
        latest = self._state.heads.find_latest(opening)
        is_other = latest is not None and bytes.fromhex(latest.key) not in conversation.chain
        if is_other or self._branches.is_taken(opening, conversation):
            return _make_id(conversation.key, tools, session)
        return opening


def _came_first(first: str, conversation: Conversation) -> bool:
    """Whether the first request that continued from a head, by its chain, belongs to this conversation."""
    key = bytes.fromhex(first)
    return key == conversation.key or key in conversation.chain


def _choose_purpose(received: Received, *, is_agent: bool) -> Purpose:
    """Looks only at how texts begin. In a side call with tools only the newest message shows the purpose."""
    body, conversation = received.body, received.conversation
    leading = b""
    if not body.envelope.tools:
        leading = body.field(body.envelope.system_slice) or (body.raw(0) if conversation.leading else b"")
    last = conversation.messages[-1:]
    newest = body.raw(-1) if last and last[0].role == "user" else b""
    if len(newest) > 2 * NEWEST_BYTES:
        # A gateway in front of this one puts its question behind what the message says (`Format.ask`).
        newest = newest[:NEWEST_BYTES] + newest[-NEWEST_BYTES:]
    return find_purpose(leading[:LEADING_BYTES], newest, is_agent=is_agent)


def _make_id(key: bytes, tools: bytes, session: str | None = None) -> str:
    return hashlib.sha256(key + tools + (session or "").encode()).hexdigest()[:_ID_DIGITS]


def _find_command(received: Received) -> str | None:
    """The instructions of a `/compact` in the last message; None if that is not a command.

    If the upstream stores the conversation there are no commands: it would not know our response, and would
    refuse every later request that names it.
    """
    messages, envelope = received.conversation.messages, received.body.envelope
    if envelope.is_partial or envelope.is_kept or not (messages and may_be_command(messages[-1])):
        return None
    raw = received.raw(len(messages) - 1)
    if len(raw) > _LONGEST_COMMAND_BYTES or _COMMAND_TRACE not in raw:
        return None
    return parse_compact(without_ephemeral_blocks(received.format.parse_entry(raw).text))
