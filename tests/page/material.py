"""A gateway with conversations, and somebody who looks at its page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from playwright.async_api import Browser, Page

from tests.page.browser import OPEN, PLAIN_LOOK, Look, looking
from tests.toy.agent import Session, make_session
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import Pace, Run, run_session
from tests.toy.upstream import ToyUpstream

# Its history passes the soft threshold of a window of 16,000 tokens after some 20 requests.
LONG = make_session(30, 3)
WINDOW = 16_000


class Scene(NamedTuple):
    toy: ToyUpstream
    gateway: RunningGateway
    page: Page


@asynccontextmanager
async def opened(browser: Browser, look: Look = PLAIN_LOOK, more: str = OPEN) -> AsyncIterator[Scene]:
    """The page of a gateway that has seen no request yet. more: settings."""
    async with (
        ToyUpstream(window=WINDOW) as toy,
        running_gateway(make_settings(toy, more=more)) as gateway,
        looking(browser, gateway.admin_port, look) as page,
    ):
        yield Scene(toy, gateway, page)


async def play(
    gateway: RunningGateway,
    toy: ToyUpstream,
    session: Session = LONG,
    first: int = 0,
    last: int | None = None,
) -> Run:
    """Requests first to last of a session. Everything about their compactions is written."""
    run = await run_session(session, gateway.base_url, toy, pace=Pace(first=first, last=last))
    assert run.failed == []
    await gateway.settle()
    return run
