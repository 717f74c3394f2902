"""One browser for a test."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser

from tests.page.browser import running_chromium


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with running_chromium() as started:
        yield started
