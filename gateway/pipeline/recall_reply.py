"""One reply to the client, made of as many responses as the model took: it searches, and goes on.

Between two responses it answers the calls of the gateway's tool. Before the end leaves it keeps what was
recalled: no later request can come before that is durable.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from gateway.conversations.turn import Turn
from gateway.core.compaction.clamp import SMALLEST_REPLY_TOKENS
from gateway.core.compaction.plan import Plan
from gateway.core.history.recall import RecallRound, ReplyMark
from gateway.core.search.cutting import estimate_tokens
from gateway.core.sizing.usage import Usage, add_usage
from gateway.headers import X_GATEWAY_RECALL
from gateway.http.reply import Reply
from gateway.pipeline.exchange import Outcome
from gateway.pipeline.recall_search import NO_MORE, RecallSearch
from gateway.wire.recall import AnsweredRecall, RecallRequest

T = TypeVar("T")

# A model that has not found it with the third query does not with the fourth, and each is another call.
MOST_SEARCHES: Final = 3


class RecallReply:
    """An editor of the responses to one turn. keep: makes durable what was recalled.

    request: what the last response asks for, if the model waits for it. answered: such responses, and what
    they were answered. outcome: of the last response. is_last: calls of the tool are taken out from now on.
    """

    def __init__(
        self,
        turn: Turn,
        plan: Plan,
        search: RecallSearch,
        client: Reply,
        keep: "Callable[[RecallReply], Coroutine[Any, Any, None]]",
        *,
        shows_headers: bool,
    ) -> None:
        self._turn = turn
        self._plan = plan
        syntax = turn.received.format.recall
        assert syntax is not None, "the tool is offered only where the format has one"
        self._syntax = syntax
        self._search = search
        self._client = client
        self._keep = keep
        self._shows_headers = shows_headers
        self._stitcher = syntax.make_stitcher()
        self.holds_all = not turn.received.body.envelope.is_streaming
        self.rounds: list[RecallRound] = []
        self.request: RecallRequest | None = None
        self.answered: list[AnsweredRecall] = []
        self.outcome: Outcome | None = None
        self.searches = 0
        # Of all calls but the last one.
        self.extra: Usage | None = None
        self.is_last = False
        self._has_said_no = False
        # Is done with the first piece of a response.
        self._awaited: asyncio.Future[None] | None = None

    @property
    def has_shown(self) -> bool:
        """Whether the client has seen anything of the reply."""
        return self._stitcher.has_shown

    @property
    def mark(self) -> ReplyMark:
        """What the client is shown."""
        return self._stitcher.reply

    @property
    def headers(self) -> dict[str, str]:
        """Empty as long as nothing was recalled."""
        if not self.searches or not self._shows_headers:
            return {}
        extra = self.extra or Usage(0, 0)
        told = f"searches={self.searches}, prompt_tokens={extra.prompt_tokens}"
        return {X_GATEWAY_RECALL: f"{told}, output_tokens={extra.output_tokens}"}

    def await_first(self, awaited: "asyncio.Future[None]") -> None:
        """awaited: is done with the first piece of the next response."""
        self._awaited = awaited

    def feed(self, piece: bytes) -> bytes:
        if self._awaited is not None:
            if not self._awaited.done():
                self._awaited.set_result(None)
            self._awaited = None
        return self._stitcher.feed(piece)

    async def end(self) -> bytes | None:
        """None if the model waits for what it has asked for."""
        request = self._stitcher.end()
        if request is not None and not self.is_last:
            if not request.is_parallel:
                self.request = request
                return None
            await self._answer(request)
        rest = self._stitcher.finish()
        if self.rounds:
            await self._wait_for(self._keep(self))
        return rest

    def break_off(self) -> None:
        """The last response came only in part."""
        self._stitcher.end()

    def note_outcome(self, outcome: Outcome) -> None:
        self.outcome = outcome

    def count_extra(self) -> Usage | None:
        """Counts the last response as one of those that were not the last. Returns its usage."""
        usage = self.outcome.reading.usage if self.outcome is not None else None
        self.extra = add_usage(self.extra, usage)
        return usage

    async def answer(self) -> None:
        """Answers the request. If the model was told before that there are no more searches, it is the last
        one.
        """
        request, self.request = self.request, None
        if request is not None:
            self.is_last = self._has_said_no
            results = await self._answer(request)
            self.answered.append(AnsweredRecall(request, results))

    def start_over(self, *, is_begun: bool) -> None:
        """The original request is sent once more, without the tool. is_begun: the client has seen the
        beginning of the reply, and nothing of its content.
        """
        self.is_last, self.rounds, self.answered = True, [], []
        if not is_begun:
            self._stitcher = self._syntax.make_stitcher()

    async def _answer(self, request: RecallRequest) -> str:
        texts, taken_tokens = list[str](), 0
        for call in request.calls:
            texts.append(await self._find(call.query, self._count_room(taken_tokens)))
            taken_tokens += estimate_tokens(texts[-1])
        results = self._syntax.render_results(request, texts)
        self.rounds.append(
            RecallRound(
                call=request.call,
                results=results,
                shown=request.shown,
                said=request.said,
                is_parallel=request.is_parallel,
            )
        )
        return results

    async def _find(self, query: str | None, max_tokens: int) -> str:
        if self.searches >= MOST_SEARCHES:
            self._has_said_no = True
            return NO_MORE
        self.searches += 1
        return await self._wait_for(self._search.answer(self._turn, self._plan, query, max_tokens))

    def _count_room(self, taken_tokens: int) -> int:
        """Tokens that the results of a search may take: the window must hold them, and an answer.

        taken_tokens: by other results of the same response, which its usage does not have.
        """
        most, thresholds = self._turn.policy.recall_tokens, self._turn.thresholds
        context = thresholds.context if thresholds is not None else None
        if context is None:
            return most
        usage = self.outcome.reading.usage if self.outcome is not None else None
        used_tokens = max(self._plan.sent, usage.total if usage is not None else 0)
        return min(most, context - used_tokens - taken_tokens - SMALLEST_REPLY_TOKENS)

    async def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Keeps the client alive meanwhile."""
        task = asyncio.ensure_future(work)
        try:
            await self._client.wait_for(task, self.headers)
            return await task
        finally:
            task.cancel()
