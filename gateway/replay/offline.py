"""What stands where a running gateway reaches an upstream, or is reached by a client.

The upstream accepts every request and reports the usage that the simulation has found. The summarizer writes
a text of a stated length. The client waits for as long as it takes.
"""

import asyncio
import math
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple, ParamSpec, TypeVar

from gateway.bounds.lanes import Lanes, Steps, take_all_steps
from gateway.compaction.client import FittedCall, SummaryClient, SummaryReply
from gateway.core.compaction.summary import Candidate, find_headings
from gateway.core.sizing.usage import Usage
from gateway.http.answered import Answered
from gateway.http.reply import Reply
from gateway.pipeline.relay import Exchange, HeldResponse, Relay
from gateway.replay.measuring import LEAST_TOKENS, NOT_CACHED, STEP_TOKENS, CacheUse
from gateway.replay.results import SUMMARY_TOKENS, SummaryCallRun
from gateway.tenants import Tenant
from gateway.wire.reader import Reading

P = ParamSpec("P")
T = TypeVar("T")

# Of the length that a summary may have.
_CAP_SHARE: Final = 0.8
_SENTENCE: Final = "The agent read a file, changed it as the task asked, and ran the tests again. "
# By o200k_base, the space at its end included in the next one.
_SENTENCE_TOKENS: Final = 19
_BAD_REQUEST: Final = 400


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


class CachedPrompt(NamedTuple):
    """What the provider has read last of the conversation. is_whole: a call that rides now repeats all of it
    and adds nothing but its own message. Otherwise the request that waits has added something, too.
    """

    tokens: int = 0
    use: CacheUse = NOT_CACHED
    is_whole: bool = False


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
        tokens = choose_summary_tokens(fitted.call.request.cap)
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


def choose_summary_tokens(cap: int) -> int:
    """cap: the longest summary that is accepted, in tokens."""
    return max(_SENTENCE_TOKENS, min(SUMMARY_TOKENS, int(_CAP_SHARE * cap)))


@cache
def make_summary_text(tokens: int, asked: str = "") -> str:
    """About so many tokens, by the usual tokenizer. asked: a text whose headings it has in addition."""
    headings = [f"## {heading}\n" for heading in find_headings(asked)]
    return "".join([*headings, _SENTENCE * max(1, tokens // _SENTENCE_TOKENS)]).strip()
