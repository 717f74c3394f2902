"""What a stop or a sudden end leaves is enough to go on, on disk and on Redis."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.toy.agent import Session, Shape, Style, make_session, with_thinking
from tests.toy.chat import CHAT
from tests.toy.checks import PLACEHOLDER, Promise, check_conversation, check_facts, check_request
from tests.toy.delivery import Delivery, RawAnswer
from tests.toy.house import House, make_settings
from tests.toy.messages import Messages
from tests.toy.product import serve
from tests.toy.redis_server import RedisServer
from tests.toy.responses import Responses
from tests.toy.running import Run, wait_until
from tests.toy.upstream import Seen, ToyUpstream

WINDOW = 16_000
SHAPES = {
    "chat": Shape(dialect=CHAT, max_tokens=1_000),
    "responses": Shape(dialect=Responses(), max_tokens=1_000, stream=True),
    "messages": Shape(dialect=Messages(), max_tokens=1_000, stream=True),
    "responses-previous": Shape(dialect=Responses(history="previous"), max_tokens=1_000),
    "messages-threads": Shape(dialect=Messages(threads=True), max_tokens=2_000, stream=True),
}


@asynccontextmanager
async def open_house(toy: ToyUpstream, store: str, more: str = "") -> AsyncIterator[House]:
    folder = Path(store.removeprefix("disk:")) if store.startswith("disk:") else None
    async with serve(make_settings(toy, store=store, more=more)) as product:
        yield House(toy, product, "sk-toy", folder)


def join(runs: list[Run], toy: ToyUpstream) -> Run:
    """With what was asked for between them."""
    return Run(
        answers=tuple(answer for run in runs for answer in run.answers),
        seen=tuple(toy.requests),
        sent=tuple(sent for run in runs for sent in run.sent),
        replays=tuple(code for run in runs for code in run.replays),
    )


@pytest.mark.system(2)
@pytest.mark.parametrize("name", SHAPES)
async def test_a_session_with_restarts_keeps_every_promise(name: str, store_url: str) -> None:
    """As if there had been none: the same id, the same summary and the same prefix."""
    session, shape = make_session(44, 7, "many_users", 600, facts="all"), SHAPES[name]
    toy, runs, since = ToyUpstream(window=WINDOW, bias=1.2), list[Run](), None
    async with toy:
        for first, last in ((0, 9), (9, 24), (24, 30), (30, 44)):
            async with open_house(toy, store_url) as house:
                runs.append(await house.play(session, shape, first, last, since=since))
                since = runs[-1].since
                await house.at_rest()
    run = join(runs, toy)
    assert run.replays == ()
    promise = Promise(window=WINDOW, bias=1.2, tolerance=0.3)
    sent = check_conversation(session, shape, run, promise=promise)
    assert sent[-1].inserted


async def play_with_images(house: House, session: Session, folder: Path, *, rests: bool) -> dict[int, Path]:
    """All turns but the last. A copy of the store after each third one, and after each with a summary."""
    images = dict[int, Path]()
    for turn in range(len(session) - 1):
        run = await house.play(session, SHAPES["chat"], turn, turn + 1)
        assert run.failed == []
        if rests:
            # What is written behind a response is written a moment later.
            await house.at_rest()
        if turn % 3 == 0 or run.plans == ["pivot"]:
            images[turn] = await house.image(folder / f"image-{turn}")
    return images


@pytest.mark.parametrize("rests", [True, False], ids=["between turns", "while a summary is made"])
@pytest.mark.parametrize("style", ["one_user", "talk"])
async def test_what_a_sudden_end_leaves_at_any_moment_goes_on(
    tmp_path: Path, rests: bool, style: Style
) -> None:
    """A copy of the store as it was at a moment is opened by another gateway. What was stored is used as if
    nothing had happened, and what was not is made again.
    """
    session, shape = make_session(34, 8, style, 700, facts="all"), SHAPES["chat"]
    toy = ToyUpstream(window=WINDOW, bias=1.2)
    toy.summary_delivery = Delivery(before_headers_seconds=0.0 if rests else 0.05)
    async with toy:
        async with open_house(toy, f"disk:{tmp_path}/state") as house:
            images = await play_with_images(house, session, tmp_path, rests=rests)
        plain = list(toy.chats)
        for turn, folder in list(images.items())[-6:-1]:
            made = len(toy.summaries)
            async with open_house(toy, f"disk:{folder}") as house:
                run = await house.play(session, shape, turn + 1, turn + 2)
            assert run.failed == [] and run.refusals == []
            check_request(session, shape, turn + 1, run.outgoing[-1])
            if rests:
                is_new = len(toy.summaries) - made
                assert is_new <= 1 and (is_new or run.outgoing[-1].body == plain[turn + 1].body)


def copy_at_first_use(house: House, word: bytes, folder: Path) -> None:
    """The store is copied at the very moment at which the upstream sees this word for the first time."""

    def look(seen: Seen) -> RawAnswer | None:
        if word in seen.body and not seen.is_summary and not folder.exists():
            house.copy_store(folder)
        return None

    house.toy.intercept = look


PRUNES = "policies: {default: {pruning: {eager: true, protect_tokens: 1500, minimum_tokens: 1000}}}\n"


@pytest.mark.parametrize(
    ("word", "more", "window"),
    [(b"not verified", "", WINDOW), (PLACEHOLDER.encode(), PRUNES, 64_000)],
    ids=["summary", "cleared results"],
)
async def test_what_is_in_use_is_never_lost_in_a_sudden_end(
    tmp_path: Path, word: bytes, more: str, window: int
) -> None:
    session, shape = make_session(34, 9, "one_user", 700), SHAPES["chat"]
    toy, image, turn = ToyUpstream(window=window, bias=1.2), tmp_path / "image", 0
    async with toy, open_house(toy, f"disk:{tmp_path}/state", more) as house:
        copy_at_first_use(house, word, image)
        while not image.exists():
            run = await house.play(session, shape, turn, turn + 1)
            assert run.failed == []
            turn += 1
        made, before = len(toy.summaries), toy.chats[-1]
        async with open_house(toy, f"disk:{image}", more) as other:
            after = await other.play(session, shape, turn, turn + 1)
    assert after.failed == [] and after.plans == run.plans
    assert len(toy.summaries) == made
    items = shape.dialect.items(before.request)
    assert shape.dialect.items(after.outgoing[0].request)[: len(items)] == items
    assert after.conversation == run.conversation


async def wait_for_summary(house: House, count: int = 1) -> None:
    """Returns once so many were asked for, or nothing is under way any more."""
    resting = asyncio.create_task(house.at_rest())
    await wait_until(lambda: resting.done() or len(house.toy.summaries) >= count)
    resting.cancel()
    await asyncio.gather(resting, return_exceptions=True)


@pytest.mark.system(2)
async def test_a_summary_interrupted_by_a_stop_is_started_again_by_the_next_request(store_url: str) -> None:
    """The summary starts before that request gets its response. Only the stored marker can cause it."""
    toy = ToyUpstream(window=WINDOW, bias=1.2)
    toy.summary_delivery = Delivery(never=True)
    session, shape = make_session(150, 7, "one_user", 120), SHAPES["chat"]
    async with toy:
        turn = 0
        async with open_house(toy, store_url, "drain_seconds: 0\n") as house:
            while not toy.summaries:
                assert (await house.play(session, shape, turn, turn + 1)).failed == []
                turn += 1
                await wait_for_summary(house)
        toy.summary_delivery, toy.delivery = Delivery(), Delivery(never=True)
        async with open_house(toy, store_url) as house:
            path, body = "/chat/completions", session.request(turn, shape)
            asking = asyncio.create_task(house.post(path, body))
            await wait_until(lambda: len(toy.summaries) == 2 and toy.summaries[1].finished)
            await wait_until(lambda: len(toy.chats) == turn + 1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.system(2)
async def test_a_client_that_hangs_up_still_gets_its_summary_next_time() -> None:
    toy, ready = ToyUpstream(window=WINDOW), asyncio.Event()
    toy.summary_delivery = Delivery(after=ready)
    body = make_session(30, 5, "one_user", 700).request(24, SHAPES["chat"])
    async with toy, open_house(toy, "memory:") as house:
        asking = asyncio.create_task(house.post("/chat/completions", body))
        await wait_until(lambda: bool(toy.summaries))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        ready.set()
        await wait_until(lambda: toy.summaries[0].finished)
        answer = await house.post("/chat/completions", body)
    assert answer.status == 200
    assert len(toy.summaries) == 1


async def test_two_replicas_make_one_summary_and_both_use_it(empty_redis: RedisServer) -> None:
    """Each turn goes to another one, and both get every tenth at once."""
    session, shape = make_session(40, 11, "many_users", 700, facts="all"), SHAPES["chat"]
    toy, runs = ToyUpstream(window=WINDOW, bias=1.2), list[Run]()
    url = empty_redis.patient_url
    async with toy, open_house(toy, url) as one, open_house(toy, url) as other:
        for turn in range(len(session)):
            house = (one, other)[turn % 2]
            runs.append(await house.play(session, shape, turn, turn + 1))
            await one.at_rest()
            await other.at_rest()
        check_conversation(
            session, shape, join(runs, toy), promise=Promise(window=WINDOW, bias=1.2, tolerance=0.3)
        )
        both = replace(make_session(30, 12, "one_user", 700), name="both")
        made, body = len(toy.summaries), both.request(24, shape)
        answers = await asyncio.gather(
            *(house.post("/chat/completions", body) for house in (one, other) for _ in range(4))
        )
    assert {answer.status for answer in answers} == {200}
    assert len(toy.summaries) == made + 1
    assert len({seen.body for seen in toy.chats[-8:]}) == 1


async def test_a_replica_that_dies_over_a_summary_is_replaced_by_the_other(empty_redis: RedisServer) -> None:
    """Its lease ends, and the other makes the summary."""
    session, shape = make_session(30, 13, "one_user", 700), SHAPES["chat"]
    toy, url = ToyUpstream(window=WINDOW), empty_redis.patient_url
    async with toy, open_house(toy, url) as one, open_house(toy, url) as other:
        toy.summary_delivery = Delivery(never=True)
        body = session.request(24, shape)
        first = asyncio.create_task(one.post("/chat/completions", body))
        await wait_until(lambda: len(toy.summaries) == 1)
        second = asyncio.create_task(other.post("/chat/completions", body))
        await asyncio.sleep(0.1)
        assert len(toy.summaries) == 1
        toy.summary_delivery = Delivery()
        first.cancel()
        stopping = asyncio.create_task(one.product.stop())
        answer = await second
        await stopping
        await asyncio.gather(first, return_exceptions=True)
    assert answer.status == 200 and answer.header("x-gateway-plan") == "pivot"
    assert len(toy.summaries) == 2


@pytest.mark.parametrize("thinks", [True, False])
async def test_references_unknown_after_a_restart_are_passed_on_unchanged(thinks: bool) -> None:
    for dialect in (Responses(history="references"), Responses(history="previous")):
        session: Session = make_session(12, 3, "many_users", 500)
        session = with_thinking(session) if thinks else session
        shape, toy = Shape(dialect=dialect, max_tokens=1_000), ToyUpstream(window=64_000)
        async with toy:
            async with open_house(toy, "memory:") as house:
                first = await house.play(session, shape, last=6)
            body = session.request(6, shape, first.since)
            async with open_house(toy, "memory:") as house:
                answer = await house.post("/responses", body)
        assert first.failed == [] and answer.is_whole
        assert toy.chats[-1].body == body


async def test_a_store_that_is_gone_for_a_while_costs_no_request(empty_redis: RedisServer) -> None:
    """A summary may be made twice; nothing is cut that no summary stands for."""
    session, shape = make_session(44, 14, "many_users", 600, facts="all"), SHAPES["chat"]
    toy, runs = ToyUpstream(window=WINDOW, bias=1.2), list[Run]()
    changes: dict[int, Callable[[], None]] = {12: empty_redis.pause, 15: empty_redis.resume}
    async with toy, open_house(toy, empty_redis.url + "?timeout_ms=200") as house:
        for turn in range(30):
            changes.get(turn, lambda: None)()
            runs.append(await house.play(session, shape, turn, turn + 1))
            if not 12 <= turn < 15:
                await house.at_rest()
    run = join(runs, toy)
    assert run.failed == [] and run.refusals == []
    found = [check_request(session, shape, turn, tries[-1]) for turn, tries in enumerate(run.sent)]
    check_facts(session, run, found, 0)
    assert found[-1].inserted
