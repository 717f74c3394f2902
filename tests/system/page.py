"""A real browser that looks at the page of a real gateway, and a gateway with conversations.

Debian's chromium, as Playwright's own is a download. What the page must never do is checked whenever a look
ends: errors on the console (a violation of the content security policy is one), and errors in scripts.
"""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect

from tests.toy.agent import Session, make_session
from tests.toy.house import make_settings
from tests.toy.product import Product, serve
from tests.toy.running import Pace, Run, run_session
from tests.toy.upstream import ToyUpstream

CHROMIUM: Final = shutil.which("chromium")
# Where no test may be skipped, as in CI, a browser that is missing is a failure.
requires_chromium = pytest.mark.skipif(
    CHROMIUM is None and "REQUIRE_CHROMIUM" not in os.environ,
    reason="chromium is not installed (apt-get install chromium)",
)
# An admin port without a token: with texts, as on a laptop, and without.
OPEN: Final = "admin: {port: 0}\n"
HIDING: Final = OPEN + "policies: {default: {show_texts: false}}\n"
# A machine that is busy with other tests is slow; only what fails waits for all of it.
_PATIENCE_MS: Final = 30_000
_SERIOUS: Final = ("serious", "critical")
Scheme = Literal["light", "dark"]
SCHEMES: Final[tuple[Scheme, ...]] = ("light", "dark")

expect.set_options(timeout=_PATIENCE_MS)


@dataclass(frozen=True, kw_only=True)
class Look:
    """How somebody looks at the page. token: what the tab has stored already."""

    path: str = "#/"
    scheme: Scheme = "light"
    width: int = 1280
    height: int = 900
    token: str | None = None
    # Words of console errors that belong to the test, such as those of a refused request.
    forgiven: tuple[str, ...] = ()


PLAIN_LOOK: Final = Look()


@dataclass(kw_only=True)
class Complaints:
    found: list[str] = field(default_factory=list)

    def listen(self, page: Page) -> None:
        page.on("console", self._note_message)
        page.on("pageerror", lambda error: self.found.append(f"{error}\n{error.stack}"))

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.found.append(message.text)

    def without(self, forgiven: tuple[str, ...]) -> list[str]:
        return [text for text in self.found if not any(word in text for word in forgiven)]


@asynccontextmanager
async def running_chromium() -> AsyncIterator[Browser]:
    # In containers of CI there is neither a sandbox nor much shared memory.
    arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM or "chromium", args=arguments)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def looking(browser: Browser, admin_port: int, look: Look = PLAIN_LOOK) -> AsyncIterator[Page]:
    """The page at this port. Fails at the end if it has complained."""
    complaints = Complaints()
    root = f"http://127.0.0.1:{admin_port}/"
    context = await browser.new_context(
        viewport={"width": look.width, "height": look.height},
        color_scheme=look.scheme,
        reduced_motion="reduce",
        permissions=["clipboard-read", "clipboard-write"],
        locale="en-US",
        timezone_id="UTC",
    )
    context.set_default_timeout(_PATIENCE_MS)
    if look.token is not None:
        await context.add_init_script(f"sessionStorage.setItem('gateway-admin-token', '{look.token}')")
    page = await context.new_page()
    complaints.listen(page)
    try:
        await page.goto(root + look.path)
        yield page
    finally:
        await context.close()
    left = complaints.without(look.forgiven)
    assert left == [], "\n".join(left)


async def check_accessibility(page: Page) -> None:
    """No serious finding of axe-core, and no scrolling to the side."""
    results = await Axe().run(page)
    violations = results.response["violations"]
    found = [
        f"{each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes']]}"
        for each in violations
        if each["impact"] in _SERIOUS
    ]
    assert found == [], "\n".join(found)
    widths = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1], f"scrolls to the side: {widths}"


# Its history passes the soft threshold of a window of 16,000 tokens after some 20 requests.
LONG = make_session(30, 3)
# A word of a message that is not sent any more then.
FOLDED = next(fact.token for fact in LONG.facts if fact.turn > 0)
WINDOW = 16_000


class Scene(NamedTuple):
    toy: ToyUpstream
    gateway: Product
    page: Page


@asynccontextmanager
async def opened(browser: Browser, look: Look = PLAIN_LOOK, more: str = OPEN) -> AsyncIterator[Scene]:
    """The page of a gateway that has seen no request yet. more: settings."""
    async with (
        ToyUpstream(window=WINDOW) as toy,
        serve(make_settings(toy, more=more)) as gateway,
        looking(browser, gateway.admin_port, look) as page,
    ):
        yield Scene(toy, gateway, page)


async def play(
    gateway: Product,
    toy: ToyUpstream,
    session: Session = LONG,
    first: int = 0,
    last: int | None = None,
) -> Run:
    """Requests first to last of a session. Everything about their compactions is written."""
    run = await run_session(session, gateway.base_url, toy, pace=Pace(first=first, last=last))
    assert run.failed == []
    await gateway.at_rest()
    return run


async def open_newest(page: Page) -> None:
    """The newest conversation of the overview."""
    table = page.get_by_role("table", name="Conversations")
    await table.get_by_role("rowheader").first.get_by_role("link").first.click()
    await expect(page.get_by_role("heading", name="Tokens per request")).to_be_visible()
