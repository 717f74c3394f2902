"""Plays a session's requests against a base URL, one after the other, and keeps the responses.

`toy` may be behind a gateway or be asked directly.
"""

import asyncio
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import aiohttp

from tests.toy.agent import PLAIN, Session, Shape
from tests.toy.chat import CHAT
from tests.toy.dialect import Dialect, Since
from tests.toy.dialects import find_dialect
from tests.toy.reply import Reply
from tests.toy.summarising import find_facts
from tests.toy.threads import find_thread_error
from tests.toy.upstream import Request, Seen, ToyUpstream


@dataclass(frozen=True, kw_only=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes  # decoded
    seconds: float
    broken: str | None = None  # how the answer broke off, if it did
    dialect: Dialect = CHAT

    @property
    def is_whole(self) -> bool:
        """A good status, nothing broken off, no error inside, and an end."""
        return self.status == 200 and self.broken is None and self.dialect.is_whole(self.body)

    @property
    def response_id(self) -> str | None:
        """By which a next request may refer to this answer and all before it."""
        return self.dialect.read_response_id(self.body) if self.is_whole else None

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Which turns are played, by whose key, and with which further headers.

    since: what the upstream holds already, of an earlier run.
    """

    first: int = 0
    last: int | None = None
    key: str = "sk-toy"
    headers: dict[str, str] = field(default_factory=dict)
    since: Since | None = None


EAGER = Pace()


@dataclass(frozen=True, kw_only=True)
class Run:
    """seen: all that reached the toy while the run went on, in order of arrival."""

    answers: tuple[Answer, ...]
    seen: tuple[Seen, ...]
    # By turn, the conversation's calls that reached the toy, second tries included.
    sent: tuple[tuple[Seen, ...], ...] = ()
    # Error codes for which a thread was begun anew.
    replays: tuple[str, ...] = ()
    # What the upstream held before each turn, and at the end.
    sinces: tuple[Since | None, ...] = ()

    @property
    def since(self) -> Since | None:
        return self.sinces[-1]

    @property
    def statuses(self) -> list[int]:
        return [answer.status for answer in self.answers]

    @property
    def plans(self) -> list[str | None]:
        return [answer.header("x-gateway-plan") for answer in self.answers]

    @property
    def conversation(self) -> str:
        """The id that the last response names."""
        return self.answers[-1].header("x-gateway-conversation") or ""

    @property
    def failed(self) -> list[tuple[int, int, bytes]]:
        """Position, status and beginning of the body of every answer that is not whole."""
        found = [(i, a) for i, a in enumerate(self.answers) if not a.is_whole]
        return [(i, a.status, (a.broken or "").encode() + a.body[-400:]) for i, a in found]

    @property
    def refusals(self) -> list[str]:
        """Refusals of a strict upstream, summary calls included."""
        return [seen.refusal for seen in self.seen if seen.refusal is not None]

    @property
    def prompts(self) -> list[Request]:
        """The conversation's requests with everything that they refer to filled in."""
        return [seen.whole for seen in self.outgoing]

    @property
    def outgoing(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.is_chat and not seen.is_summary]

    @property
    def summaries(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.is_summary]

    @property
    def summarised_facts(self) -> set[str]:
        return {fact for seen in self.summaries for fact in seen.facts}

    def facts_lost(self, tokens: Sequence[str]) -> list[str]:
        """Facts that neither a summary call nor the last outgoing request shows."""
        visible = set(find_facts(self.outgoing[-1].whole)) if self.outgoing else set()
        return [token for token in tokens if token not in visible | self.summarised_facts]


async def run_session(
    session: Session, base_url: str, toy: ToyUpstream, shape: Shape = PLAIN, pace: Pace = EAGER
) -> Run:
    """Play the turns of the pace in order; the toy answers each with the scripted reply.

    A thread that is lost is begun anew with the whole history, as Anthropic's SDKs do. Requests of other
    conversations must not reach the toy meanwhile, or they get this session's replies.
    """
    before, answers, since = len(toy.requests), list[Answer](), pace.since
    sent: list[tuple[Seen, ...]] = []
    replays, sinces = list[str](), [since]
    dialect, turns = shape.dialect, range(len(session))[pace.first : pace.last]
    headers = {"Content-Type": "application/json", **dialect.headers(pace.key), **pace.headers}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=120)) as client:
        for turn in turns:
            toy.reply = _always(session.reply(turn))
            body, start = session.request(turn, shape, since), len(toy.requests)
            answer = await ask(client, f"{base_url}{dialect.path}", body)
            code = find_thread_error(answer.body)
            if code is not None:
                replays.append(code)
                answer = await ask(client, f"{base_url}{dialect.path}", session.request(turn, shape))
            answers.append(answer)
            arrived = toy.requests[start:]
            sent.append(tuple(seen for seen in arrived if seen.is_chat and not seen.is_summary))
            since = _continue(since, turn, answer)
            sinces.append(since)
    seen = tuple(toy.requests[before:])
    return Run(
        answers=tuple(answers), seen=seen, sent=tuple(sent), replays=tuple(replays), sinces=tuple(sinces)
    )


def _continue(since: Since | None, turn: int, answer: Answer) -> Since | None:
    """The newest answer that a request may refer to."""
    response_id = answer.response_id
    return since if response_id is None else Since(turn=turn, response_id=response_id)


def _always(reply: Reply) -> Callable[[Request], Reply]:
    return lambda _: reply


async def ask(
    client: aiohttp.ClientSession, url: str, body: bytes, on_head: Callable[[], None] = lambda: None
) -> Answer:
    """One exchange in the format of the URL; a broken-off answer is an Answer too.

    on_head: called once the head of the answer is there.
    """
    started, chunks, broken = time.monotonic(), bytearray(), None
    # Not as plain bytes: aiohttp warns of those above 1 MiB.
    async with client.post(url, data=io.BytesIO(body)) as response:
        on_head()
        try:
            async for chunk in response.content.iter_any():
                chunks += chunk
        except aiohttp.ClientError as error:
            broken = repr(error)
        headers = tuple(response.headers.items())
    seconds = time.monotonic() - started
    return Answer(
        status=response.status,
        headers=headers,
        body=bytes(chunks),
        seconds=seconds,
        broken=broken,
        dialect=find_dialect(url) or CHAT,
    )


async def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Returns once the condition holds; raises TimeoutError if it does not within the time.

    The time is for a machine that is busy with other things; only what fails waits for all of it.
    """
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
