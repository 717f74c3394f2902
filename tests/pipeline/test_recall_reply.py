"""What one reply is made of, response by response. A toy in the stitcher's place shows which step is next."""

from collections.abc import Sequence
from dataclasses import replace as with_fields

from msgspec.structs import replace

from gateway.core.history.recall import ReplyMark
from gateway.core.limits.model_limits import Limits
from gateway.core.search.cutting import estimate_tokens
from gateway.core.sizing.usage import Usage
from gateway.downstream.responder import Responder
from gateway.originals.search import Scope
from gateway.pipeline.exchange import Outcome
from gateway.pipeline.recall_reply import MOST_SEARCHES, RecallReply
from gateway.pipeline.recall_search import NO_MORE, RecallSearch
from gateway.reporting.metrics import Metrics
from gateway.wire.recall import RecallCall, RecallRequest
from gateway.wire.response.reader import Reading
from tests.builders.chat import make_plan
from tests.builders.compaction import SUMMARIZING, receive, turn_of
from tests.builders.pipeline import responding
from tests.builders.recalls import SPLICING
from tests.pipeline.test_recall_search import ToySearch


class ToyStitcher:
    """requests: what each response asks for. ended: how many have."""

    has_shown = False
    reply = ReplyMark(text="shown")

    def __init__(self, requests: Sequence[RecallRequest | None]) -> None:
        self._requests = requests
        self.ended = 0

    def feed(self, piece: bytes) -> bytes:
        return piece

    def end(self) -> RecallRequest | None:
        self.ended += 1
        return self._requests[self.ended - 1]

    def finish(self) -> bytes:
        return b"END"


def request(*queries: str | None, is_parallel: bool = False) -> RecallRequest:
    calls = tuple(RecallCall(f"r{at}", query) for at, query in enumerate(queries))
    return RecallRequest(calls=calls, call="CALL", reply="", shown=0, said=0, is_parallel=is_parallel)


class Case:
    """kept: how many rounds were there each time that the reply was kept. rooms: of each search."""

    def __init__(self, client: Responder, *requests: RecallRequest | None, context: int = 100_000) -> None:
        self.search, self.kept = ToySearch([]), list[int]()
        self.stitchers = list[ToyStitcher]()

        def make_stitcher() -> ToyStitcher:
            self.stitchers.append(ToyStitcher(requests))
            return self.stitchers[-1]

        syntax = with_fields(
            SPLICING, make_stitcher=make_stitcher, render_results=lambda _, texts: "|".join(texts)
        )
        received = receive(3)
        received = replace(received, format=with_fields(received.format, recall=syntax))
        turn = turn_of(received, SUMMARIZING, Limits(context=context))
        search = RecallSearch(self.search, Metrics())
        self.reply = RecallReply(turn, make_plan(), search, client, self._keep, shows_headers=True)

    async def _keep(self, reply: RecallReply) -> None:
        self.kept.append(len(reply.rounds))

    @property
    def asked(self) -> list[str]:
        return [query for _, _, query, _ in self.search.asked]


async def test_a_reply_without_a_search_keeps_nothing_and_says_nothing() -> None:
    async with responding() as (client, _):
        case = Case(client, None)
        assert case.reply.feed(b"x") == b"x"
        assert await case.reply.end() == b"END"
    assert (case.kept, case.reply.headers) == ([], {})


async def test_a_model_that_waits_is_answered_and_the_reply_is_kept_at_its_end() -> None:
    async with responding() as (client, _):
        case = Case(client, request("a", None), None)
        assert await case.reply.end() is None
        await case.reply.answer()
        assert case.reply.request is None and not case.kept
        assert await case.reply.end() == b"END"
    (answered,) = case.reply.answered
    assert answered.results.startswith("Nothing was found") and "could not be read" in answered.results
    assert case.kept == [1]


async def test_calls_beside_the_clients_own_are_answered_at_once() -> None:
    async with responding() as (client, _):
        case = Case(client, request("a", is_parallel=True))
        assert await case.reply.end() == b"END"
    assert (case.asked, case.kept) == (["a"], [1])
    assert case.reply.headers == {"x-gateway-recall": "searches=1, prompt_tokens=0, output_tokens=0"}


async def test_after_three_searches_the_model_is_told_once_and_then_cut_off() -> None:
    async with responding() as (client, _):
        case = Case(client, request("a", "b"), request("c", "d"), request("e"), request("f"))
        for is_last in (False, False, True):
            assert await case.reply.end() is None
            await case.reply.answer()
            assert case.reply.is_last is is_last
        assert await case.reply.end() == b"END"
    assert case.asked == ["a", "b", "c"] and len(case.asked) == MOST_SEARCHES
    assert case.reply.answered[1].results.endswith(NO_MORE)
    assert case.reply.answered[2].results == NO_MORE
    assert case.kept == [3]


async def test_what_was_searched_is_forgotten_when_the_request_starts_over() -> None:
    async with responding() as (client, _):
        case = Case(client, request("a"), request("b"))
        await case.reply.end()
        await case.reply.answer()
        case.reply.start_over(is_begun=True)
        assert len(case.stitchers) == 1
        case.reply.start_over(is_begun=False)
        assert len(case.stitchers) == 2
        assert await case.reply.end() == b"END"
    assert case.kept == [] and case.asked == ["a"]


async def test_what_is_found_fits_the_window() -> None:
    """The prompt and its reply so far, and a short reply to come, are in it already."""
    async with responding() as (client, _):
        for used, room in ((1_000, SUMMARIZING.recall_tokens), (8_000, 10_000 - 8_000 - 1_024)):
            case = Case(client, request("a"), context=10_000)
            usage = Usage(prompt_tokens=used - 100, output_tokens=100)
            case.reply.note_outcome(Outcome(200, Reading(usage, "tool_calls", False, True)))
            await case.reply.end()
            await case.reply.answer()
            assert [asked[3] for asked in case.search.asked] == [room]
            assert isinstance(case.search.asked[0][1][0], Scope)


async def test_results_of_one_response_fit_the_window_together() -> None:
    async with responding() as (client, _):
        case = Case(client, request("a", "b"), context=10_000)
        usage = Usage(prompt_tokens=7_900, output_tokens=100)
        case.reply.note_outcome(Outcome(200, Reading(usage, "tool_calls", False, True)))
        await case.reply.end()
        await case.reply.answer()
    first, second = (asked[3] for asked in case.search.asked)
    said = case.reply.answered[0].results.partition("|")[0]
    assert first - second == estimate_tokens(said) > 0


async def test_usage_of_all_calls_but_the_last_is_told() -> None:
    async with responding() as (client, _):
        case = Case(client, request("a"), request("b"), None)
        for _ in range(2):
            case.reply.note_outcome(Outcome(200, Reading(Usage(90, 10), None, False, True)))
            await case.reply.end()
            await case.reply.answer()
            assert case.reply.count_extra() == Usage(90, 10)
    assert case.reply.headers == {"x-gateway-recall": "searches=2, prompt_tokens=180, output_tokens=20"}
