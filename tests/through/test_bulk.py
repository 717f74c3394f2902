"""An upstream that limits bytes or pictures, whatever their tokens."""

from dataclasses import replace

import pytest

from tests.toy.agent import Message, Session, Shape, Turn, make_session
from tests.toy.chat import CHAT
from tests.toy.delivery import RawAnswer
from tests.toy.dialect import Dialect
from tests.toy.dialects import DIALECTS
from tests.toy.messages import MESSAGES
from tests.toy.product import serve
from tests.toy.refusal import Refusal
from tests.toy.responses import RESPONSES
from tests.toy.running import Pace, Run, run_session
from tests.toy.upstream import Seen, ToyUpstream

MAX_BYTES = 120_000
MAX_PICTURES = 6
SHAPE = Shape(max_tokens=1_000)


def make_settings(toy: ToyUpstream, more: str = "") -> str:
    upstream = f'{{base_url: "{toy.base_url}", discover: false{more}}}'
    models = '[{match: "toy-*", context: 1000000}]'
    return f'store: "memory:"\nupstreams:\n  default: {upstream}\nmodels: {models}\n'


def refuse_bytes(seen: Seen) -> RawAnswer | None:
    if not seen.is_chat or len(seen.body) <= MAX_BYTES:
        return None
    seen.refusal = "bytes"
    words = "Request exceeds the maximum size"
    refusal = Refusal(message=words, kind="request_too_large", status=413)
    return seen.dialect.refuse(refusal) if seen.dialect else None


# The type of a part with a picture, and a provider's error for too many of them.
PICTURES = {
    CHAT.path: (b'"type":"image_url"', f"At most {MAX_PICTURES} image(s) may be provided in one request."),
    RESPONSES.path: (b'"type":"input_image"', f"Too many images in request. Max is {MAX_PICTURES}."),
    MESSAGES.path: (b'"type":"image"', f"messages: Too many images and documents: 7 + 0 > {MAX_PICTURES}"),
}


def refuse_pictures(seen: Seen) -> RawAnswer | None:
    if seen.dialect is None:
        return None
    kind, words = PICTURES[seen.dialect.path]
    if seen.body.count(kind) <= MAX_PICTURES:
        return None
    seen.refusal = "pictures"
    return seen.dialect.refuse(Refusal(message=words))


def with_pictures(session: Session) -> Session:
    """Adds a picture by the user after each step."""
    turns = tuple(Turn(turn.assistant, (*turn.followers, show(at))) for at, turn in enumerate(session.turns))
    return Session(
        name="pictures", leading=session.leading, tools=session.tools, opening=session.opening, turns=turns
    )


def show(at: int) -> Message:
    url = f"data:image/png;base64,{at:0100d}"
    parts = [{"type": "text", "text": "So?"}, {"type": "image_url", "image_url": {"url": url}}]
    return {"role": "user", "content": parts}


async def play(toy: ToyUpstream, session: Session, dialect: Dialect, more: str = "") -> Run:
    async with toy, serve(make_settings(toy, more)) as gateway:
        return await run_session(session, gateway.base_url, toy, replace(SHAPE, dialect=dialect))


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
@pytest.mark.parametrize("is_told", [True, False], ids=["configured", "found out"])
async def test_a_request_with_too_many_bytes_is_made_smaller(is_told: bool, dialect: Dialect) -> None:
    toy = ToyUpstream(window=1_000_000)
    toy.intercept = refuse_bytes
    more = f", max_body_bytes: {MAX_BYTES}" if is_told else ""
    run = await play(toy, make_session(60, 3, "one_user", 1_500), dialect, more)
    assert run.failed == []
    assert len(run.refusals) == (0 if is_told else 1)
    # Old tool results are most of it: to clear those may do.
    plans = {answer.header("x-gateway-plan") for answer in run.answers}
    assert plans & {"pruned", "pivot", "pivot+pruned"}
    assert len(run.summaries) <= 6
    assert len(run.outgoing[-1].body) <= MAX_BYTES


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
@pytest.mark.parametrize("is_told", [True, False], ids=["configured", "found out"])
async def test_a_request_with_too_many_pictures_is_summarized(is_told: bool, dialect: Dialect) -> None:
    toy = ToyUpstream(window=1_000_000)
    toy.intercept = refuse_pictures
    session = with_pictures(make_session(20, 3, "one_user", 300))
    run = await play(toy, session, dialect, f", max_images: {MAX_PICTURES}" if is_told else "")
    assert run.failed == []
    assert len(run.refusals) == (0 if is_told else 1)
    assert 1 <= len(run.summaries) <= 12


async def test_a_period_in_which_all_is_refused_teaches_no_tiny_limit() -> None:
    session = make_session(40, 3, "one_user", 1_500)
    toy = ToyUpstream(window=1_000_000)
    error = RawAnswer(status=413, pieces=(b'{"error":{"message":"Payload too large"}}',))
    toy.intercept = lambda seen: error if seen.is_chat and not seen.is_summary else None
    async with toy, serve(make_settings(toy)) as gateway:
        spell = await run_session(session, gateway.base_url, toy, SHAPE)
        toy.intercept = lambda _: None
        run = await run_session(make_session(8, 5, "one_user", 300), gateway.base_url, toy, SHAPE)
    assert set(spell.statuses) == {413}
    assert {answer.header("x-gateway-plan") for answer in run.answers} == {"passthrough"}


async def test_the_bytes_of_a_picture_take_no_room_from_the_reply() -> None:
    toy = ToyUpstream(window=128_000)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 80_000}}
    opening = ({"role": "user", "content": [picture, {"type": "text", "text": "So?"}]},)
    session = replace(make_session(1, 3), opening=opening)
    async with toy:
        settings = make_settings(toy, f", max_body_bytes: {MAX_BYTES}").replace("1000000", "128000")
        async with serve(settings) as gateway:
            run = await run_session(session, gateway.base_url, toy, Shape(max_tokens=32_000), Pace(last=1))
    assert run.failed == []
    assert run.answers[0].header("x-gateway-max-tokens") is None
