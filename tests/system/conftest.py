"""One browser for each module of the page."""

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser

from tests.system.page import running_chromium


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with running_chromium() as started:
        yield started
