"""Conversations for the page to show."""

from tests.toy.agent import Session, make_session
from tests.toy.gateway import RunningGateway
from tests.toy.running import Pace, Run, run_session
from tests.toy.upstream import ToyUpstream

# Its history passes the soft threshold of a window of 16,000 tokens after some 20 requests.
LONG = make_session(30, 3)


async def play(
    gateway: RunningGateway, toy: ToyUpstream, session: Session = LONG, first: int = 0, last: int | None = None
) -> Run:
    """Requests first to last of a session. Everything about their compactions is written."""
    run = await run_session(session, gateway.base_url, toy, pace=Pace(first=first, last=last))
    assert run.failed == []
    await gateway.settle()
    return run
