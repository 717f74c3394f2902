"""Plays requests through what a running gateway consists of: admission, turns, planning, sending.

All of it is built by `gateway.app`, with stand-ins where it would reach an upstream, or be reached by a
client: the upstream accepts every request and reports the usage that was measured; the summarizer writes a
text of a stated length; the client waits for as long as it takes. Each recording is a tenant of its own, so
that none learns from another. A summary that is made in the background is ready before the next request.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, ParamSpec, TypeVar

import msgspec
from aiohttp import hdrs
from multidict import CIMultiDict, CIMultiDictProxy
from pydantic import ValidationError

from gateway.app.build import Serving
from gateway.app.process import Process
from gateway.bounds.lanes import Lanes, Steps, take_all_steps
from gateway.compaction.client import FittedCall, SummaryClient, SummaryReply
from gateway.conversations.turn import Turn
from gateway.core.compaction.summary import Candidate, find_headings
from gateway.core.errors import BeyondBounds, RequestRefused, Unreadable
from gateway.core.policy import Policy
from gateway.core.sizing.usage import Usage
from gateway.headers import CALLERS_OWN
from gateway.http.answered import Answered
from gateway.http.reply import Reply
from gateway.http.request import ReceivedBody, RequestHead
from gateway.pipeline.plan import WaitBudget
from gateway.pipeline.relay import Exchange, HeldResponse, Relay
from gateway.planning.message_sizes import TextCounter, make_counters, measure_message
from gateway.replay.measuring import LEAST_TOKENS, STEP_TOKENS, CachedPrompt, Measurer, choose_cache
from gateway.replay.recordings import RecordedRequest, ReplayError
from gateway.replay.results import SUMMARY_TOKENS, CompactionRun, Played, RequestRun, SummaryCallRun, When
from gateway.reporting.events import CompactionFailed, Event, Pruned, SessionCompacted, Subscription
from gateway.settings import HookTargets, ModelRule, Settings, Traces
from gateway.settings.load import PresetError, load_preset
from gateway.tenants import Tenant
from gateway.wire.body import JSON_ERRORS
from gateway.wire.format import Format
from gateway.wire.reader import Reading

P = ParamSpec("P")
T = TypeVar("T")

# Of the longest summary that is accepted.
_CAP_SHARE: Final = 0.8
_SENTENCE: Final = "The agent read a file, changed it as the task asked, and ran the tests again. "
# By o200k_base, the space at its end included in the next one.
_SENTENCE_TOKENS: Final = 19
_BAD_REQUEST: Final = 400
# Of a replay without --policy.
_AS_CONFIGURED: Final = "as configured"


class OfflineClient(Reply):
    """Of one request. It has no connection, so nothing of Reply but what is here may be used."""

    def __init__(self) -> None:
        self.status = 0
        self.is_committed = False
        self.answered = Answered()
        # What the upstream reports for the next response. None if it fails.
        self.usage: Usage | None = None

    async def wait_for(self, work: "asyncio.Future[T]", max_seconds: float = math.inf) -> bool:
        await asyncio.wait((work,))
        return True

    async def reply(self, body: bytes) -> None:
        """A response of the gateway itself is not recorded."""


class InlineLanes(Lanes):
    """Does all work at once: nothing else waits, and a way through a thread takes longer than most work."""

    async def run(
        self, owner: str, size_bytes: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return function(*args, **kwargs)

    async def run_steps(self, owner: str, size_bytes: int, steps: Steps[T]) -> T:
        return take_all_steps(steps)


class OfflineRelay(Relay):
    """Answers for the upstream. Never opened, so it has no connection."""

    async def forward(self, exchange: Exchange, client: Reply) -> HeldResponse | None:
        assert isinstance(client, OfflineClient), "no other client is played"
        usage = client.usage
        reading = Reading(usage, "stop", has_error=usage is None, is_complete=True)
        if exchange.on_end is not None:
            exchange.on_end(200 if usage is not None else _BAD_REQUEST, reading)
        return None


class OfflineSummaries(SummaryClient):
    """Answers for the model that writes summaries. Its usage is our own count of the prompt, and the length
    of the text. A call that rides reads what the provider's cache has of the conversation.
    """

    def __init__(self) -> None:
        self._calls: list[SummaryCallRun] = []
        self.cached = CachedPrompt()

    def is_over_budget(self, tenant: Tenant) -> bool:
        return False

    async def ask(self, tenant: Tenant, fitted: FittedCall) -> SummaryReply:
        tokens = max(_SENTENCE_TOKENS, min(SUMMARY_TOKENS, int(_CAP_SHARE * fitted.call.request.cap)))
        usage = self._count_riding(fitted, tokens) if fitted.is_riding else Usage(fitted.raw_tokens, tokens)
        self._calls.append(
            SummaryCallRun(
                fitted.model.model,
                usage.prompt_tokens,
                usage.output_tokens,
                usage.cached_tokens or 0,
                usage.cache_write_tokens or 0,
                fitted.is_riding,
            )
        )
        text = make_summary_text(tokens, fitted.call.request.parts[-1] if fitted.is_riding else "")
        return SummaryReply(
            Candidate(text=text, finish_reason="stop", has_tool_calls=False, has_error=False), usage
        )

    def _count_riding(self, fitted: FittedCall, output: int) -> Usage:
        tokens, use, is_whole = self.cached
        prompt = tokens + fitted.raw_tokens if is_whole else max(tokens, fitted.prompt_tokens)
        if use.written is not None:
            # Its mark stands where that of the request does.
            read = max(use.ends, default=0)
            return Usage(prompt, output, read, max(0, prompt - fitted.raw_tokens - read))
        read = tokens // STEP_TOKENS * STEP_TOKENS if use.read is not None and tokens >= LEAST_TOKENS else 0
        return Usage(prompt, output, read)

    def take_calls(self) -> tuple[SummaryCallRun, ...]:
        """Since this was last asked for."""
        calls, self._calls = tuple(self._calls), []
        return calls


@cache
def make_summary_text(tokens: int, asked: str = "") -> str:
    """About so many tokens, by the usual tokenizer. asked: a text whose headings it has in addition."""
    headings = [f"## {heading}\n" for heading in find_headings(asked)]
    return "".join([*headings, _SENTENCE * max(1, tokens // _SENTENCE_TOKENS)]).strip()


# One recording under one policy


@dataclass(frozen=True, kw_only=True)
class ReplayGateway:
    """What a running gateway consists of, for one policy. name: of the policy, for people."""

    name: str
    serving: Serving
    process: Process
    summaries: OfflineSummaries
    events: Subscription


class ReplaySession:
    """One recording on one gateway. tenant: a credential that no other recording has."""

    def __init__(self, gateway: ReplayGateway, tenant: str) -> None:
        self._gateway = gateway
        self._proxy = gateway.serving.proxy
        self._tenant = tenant
        prices = gateway.serving.prices
        self._measurer = Measurer(gateway.process.sizer, lambda model: choose_cache(prices.find(model)))
        self._counters = make_counters(gateway.process.tokenizer)
        self._runs: list[RequestRun] = []
        self._unread = self._failed = 0

    async def play(self, request: RecordedRequest, body: bytes) -> None:
        """Plans and sends one request, and lets everything end that follows from its response.

        body: of the request, which is made once for all policies.
        """
        turn, client = await self._build_turn(request, body), OfflineClient()
        if turn is None:
            self._unread += 1
            return
        events, summaries = self._gateway.events, self._gateway.summaries
        tasks = self._gateway.process.running.tasks
        if turn.command is not None:
            await self._proxy.compact(turn, turn.command, client)
            await tasks.finish()
            return
        summaries.cached = self._measurer.find_sent(turn)
        budget = WaitBudget(turn.policy.summary)
        plan = await self._proxy.planning.plan(turn, budget, client)
        before, calls = events.take(), summaries.take_calls()
        run = await self._measurer.measure(turn, plan, request.usage)
        output = self._count_output(turn, request)
        summaries.cached = self._measurer.find_sent(turn, is_whole=True)
        if not request.has_failed:
            client.usage = Usage(run.sent, output, run.cache_read, run.cache_written)
        with self._proxy.memory.open() as share:
            await self._proxy.sender.send(turn, plan, budget, client, share)
        await tasks.finish()
        after = events.take()
        self._failed += request.has_failed
        self._runs.append(
            msgspec.structs.replace(
                run,
                output=output,
                is_usage_recorded=request.usage is not None,
                compactions=(*_list_compactions(before, "before"), *_list_compactions(after, "after")),
                pruned_messages=sum(event.marks for event in (*before, *after) if isinstance(event, Pruned)),
                calls=calls + summaries.take_calls(),
            )
        )

    def finish(self, recording: str) -> Played:
        return Played(
            recording=recording,
            policy=self._gateway.name,
            requests=tuple(self._runs),
            unread=self._unread,
            failed=self._failed,
        )

    async def _build_turn(self, request: RecordedRequest, body: bytes) -> Turn | None:
        try:
            route = self._proxy.admission.admit(_make_head(request, self._tenant))
            if route.format is None or route.is_count:
                return None
            turn = await self._proxy.turns.build(route, ReceivedBody(body, body))
            return turn if isinstance(turn, Turn) else None
        except (BeyondBounds, RequestRefused):
            return None

    def _count_output(self, turn: Turn, request: RecordedRequest) -> int:
        if request.usage is not None and request.usage.output_tokens is not None:
            return request.usage.output_tokens
        counter = self._counters[turn.policy.estimator]
        return sum(_count_reply(turn.received.format, counter, bytes(raw)) for raw in request.reply)


def _list_compactions(events: Sequence[Event], when: When) -> Iterator[CompactionRun]:
    for event in events:
        match event:
            case SessionCompacted():
                yield CompactionRun(
                    when=when,
                    kind=event.kind,
                    covers=event.covers,
                    pre_tokens=event.pre_tokens,
                    post_tokens=event.post_tokens,
                )
            case CompactionFailed():
                yield CompactionRun(
                    when=when, kind=event.kind, pre_tokens=event.pre_tokens, failure=event.reason
                )


def _make_head(request: RecordedRequest, tenant: str) -> RequestHead:
    """The recorded headers, with the tenant in place of everything that would make another one of them."""
    headers = [(name, value) for name, value in request.headers if _encode(name.lower()) not in CALLERS_OWN]
    headers.append((hdrs.AUTHORIZATION, f"Bearer {tenant}"))
    raw = tuple((_encode(name), _encode(value)) for name, value in headers)
    return RequestHead(hdrs.METH_POST, request.path, CIMultiDictProxy(CIMultiDict(headers)), raw)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _count_reply(wire_format: Format, counter: TextCounter, raw: bytes) -> int:
    """Tokens of a message or an item of a reply; 0 if it is not understood."""
    try:
        return take_all_steps(measure_message(wire_format.parse_entry, counter, raw)).tokens
    except (Unreadable, UnicodeError, *JSON_ERRORS):
        return 0


@asynccontextmanager
async def open_gateways(choices: Mapping[str, Settings]) -> AsyncIterator[Sequence[ReplayGateway]]:
    """choices: the settings of each policy, by its name. All share one process: what is counted once for
    a message is known to all of them, while everything else belongs to its settings or to a tenant.
    """
    process = Process(next(iter(choices.values())), lanes=InlineLanes())
    process.plugins = ()
    await process.stores.open()
    await process.tokenizer.load()
    with process.bus.subscribe() as events:
        try:
            yield [_make_gateway(name, settings, process, events) for name, settings in choices.items()]
        finally:
            await process.running.tasks.close()
            await process.log_writer.finish()
            await process.archive.finish()
            await process.search.close()
            await process.sessions.finish()
            await process.client.close()
            await process.stores.close()
            process.lanes.close()


def _make_gateway(name: str, settings: Settings, process: Process, events: Subscription) -> ReplayGateway:
    summaries = OfflineSummaries()
    relay = OfflineRelay(settings, process.budget, process.client)
    serving = Serving(settings, process, relay=relay, calls=summaries)
    return ReplayGateway(name=name, serving=serving, process=process, summaries=summaries, events=events)


# The settings of a replay


def choose_settings(settings: Settings, names: Sequence[str], window: int | None) -> dict[str, Settings]:
    """By the name of each policy: one of the settings file, or else a preset.

    window: of every model; None for what the settings and the bundled table say. Raises ReplayError for a
    policy that does not exist, or a window that no model has.
    """
    plain = _without_outside(settings, window)
    if not names:
        return {_AS_CONFIGURED: plain}
    return {name: _with_policy(plain, _find_policy(settings, name)) for name in names}


def _without_outside(settings: Settings, window: int | None) -> Settings:
    upstreams = {
        name: replace(each, api_key=None, key_owner=None, discover=False)
        for name, each in settings.upstreams.items()
    }
    rules = (_make_rule(window),) if window is not None else ()
    return replace(
        settings,
        store="memory:",
        hooks=HookTargets(),
        traces=Traces(),
        upstreams=upstreams,
        tenants=(),
        models=(*rules, *settings.models),
    )


def _make_rule(window: int) -> ModelRule:
    try:
        return ModelRule(match="*", context=window)
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ReplayError(f"--window {window} {why}") from error


def _with_policy(settings: Settings, policy: Policy) -> Settings:
    """The policy holds for every model, also where a rule names another one."""
    rules = tuple(
        replace(rule, policy=None)
        for rule in settings.models
        if rule.is_about_limits or rule.price is not None
    )
    policies = {**settings.policies, "default": policy}
    return replace(settings, policies=policies, models=rules)


def _find_policy(settings: Settings, name: str) -> Policy:
    found = settings.policies.get(name)
    if found is not None:
        return found
    try:
        return load_preset(name)
    except PresetError as error:
        configured = ", ".join(settings.policies)
        raise ReplayError(f"no policy {name!r}: the settings have {configured}; {error}") from error
