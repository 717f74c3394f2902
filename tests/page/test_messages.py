"""The array as received beside the array as sent, opened to the original; hostile texts are only texts."""

import json

import aiohttp
from playwright.async_api import Browser, Locator, Page, expect

from tests.page.browser import OPEN, Look, looking, requires_chromium
from tests.page.material import LONG, opened, play
from tests.page.test_conversation import open_newest
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.upstream import ToyUpstream

pytestmark = requires_chromium

_PRUNES = """
admin: {port: 0}
policies:
  default:
    show_texts: true
    compaction: {auto: false}
    pruning: {eager: true, protect_tokens: 1500, minimum_tokens: 1000}
"""
_HOSTILE = (
    "<img src=x onerror=\"document.title='broken in'\">",
    "</script><script>document.title='broken in'</script>",
    "<b>bold</b> &lt;i&gt; ${alert(1)} {{7*7}}",
    "\u202egnitirw \u05e9\u05dc\u05d5\u05dd \u2066isolated",
)
_LONG_LINE_CHARS = 1_000_000
# A window that holds it.
_WIDE = 2_000_000
# Of a text, drawn at once.
_PIECE_CHARS = 20_000


def arrays_of(page: Page) -> Locator:
    return page.get_by_role("list", name="Messages, as received and as sent")


async def test_what_was_folded_opens_to_the_originals_beside_the_summary(browser: Browser) -> None:
    async with opened(browser) as (toy, gateway, page):
        await play(gateway, toy)
        await open_newest(page)
        sent = toy.chats[-1].request["messages"]
        assert isinstance(sent, list)
        await expect(page.get_by_text(f"the model got {len(sent)}:")).to_be_visible()
        summary = arrays_of(page).get_by_role("button", name="Sent").filter(has_text="assistant")
        await summary.click()
        text = next(message["content"] for message in sent if "The work went on" in str(message["content"]))
        await expect(arrays_of(page).get_by_label("Text", exact=True)).to_contain_text(text[:200].strip())
        await summary.click()
        group = arrays_of(page).get_by_role("button", name="Received").filter(has_text="messages")
        await expect(group).to_contain_text("folded")
        await expect(group).to_have_attribute("aria-expanded", "false")
        await group.click()
        await expect(group).to_have_attribute("aria-expanded", "true")
        await arrays_of(page).get_by_role("button", name="Received 3 tool").click()
        original = LONG.messages(len(LONG) - 1)[3]["content"]
        shown = arrays_of(page).get_by_label("Text", exact=True)
        await expect(shown).to_have_count(1)
        assert await shown.text_content() == original


async def test_a_placeholder_opens_to_the_original(browser: Browser) -> None:
    async with opened(browser, more=_PRUNES) as (toy, gateway, page):
        await play(gateway, toy, last=14)
        await open_newest(page)
        place = arrays_of(page).get_by_role("listitem").filter(has_text="cleared").first
        await place.get_by_role("button", name="Sent").click()
        texts = place.get_by_label("Text", exact=True)
        await expect(texts).to_have_count(2)
        original, placeholder = await texts.nth(0).text_content(), await texts.nth(1).text_content()
        assert original in [message.get("content") for message in LONG.messages(13)]
        sent = toy.chats[-1].request["messages"]
        assert isinstance(sent, list)
        contents = [message["content"] for message in sent]
        assert placeholder in contents and original not in contents


async def test_only_what_differs_is_shown_on_demand(browser: Browser) -> None:
    async with opened(browser) as (toy, gateway, page):
        await play(gateway, toy)
        await open_newest(page)
        same = arrays_of(page).get_by_text("= as received")
        await expect(same.first).to_be_visible()
        await page.get_by_label("Show only what differs").check()
        await expect(same).to_have_count(0)
        await expect(arrays_of(page).get_by_text("sent as received").first).to_be_visible()


async def ask(gateway: RunningGateway, messages: list[object]) -> str:
    body = json.dumps({"model": "toy-model", "messages": messages})
    headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-toy"}
    url = f"{gateway.base_url}/chat/completions"
    async with aiohttp.ClientSession() as client, client.post(url, data=body, headers=headers) as response:
        assert response.status == 200, await response.read()
        return response.headers["x-gateway-conversation"]


async def test_hostile_texts_are_shown_as_texts(browser: Browser) -> None:
    async with opened(browser) as (_, gateway, page):
        messages: list[object] = []
        for text in _HOSTILE:
            messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "I see."}]
        await ask(gateway, [*messages, {"role": "user", "content": "Go on."}])
        await open_newest(page)
        for place, text in enumerate(_HOSTILE):
            line = arrays_of(page).get_by_role("button", name=f"Received {2 * place} user")
            await line.click()
            shown = arrays_of(page).get_by_label("Text", exact=True)
            await expect(shown).to_have_count(1)
            assert await shown.text_content() == text
            await line.click()
        assert await page.title() != "broken in"
        assert await page.get_by_role("main").get_by_role("img").count() == 2  # the bar and the chart


async def test_a_line_of_a_megabyte_is_shown_in_pieces(browser: Browser) -> None:
    async with ToyUpstream(window=_WIDE) as toy, running_gateway(make_settings(toy, more=OPEN)) as gateway:
        identity = await ask(gateway, [{"role": "user", "content": "x" * _LONG_LINE_CHARS}])
        async with looking(browser, gateway.admin_port, Look(path=f"#/conversations/{identity}")) as page:
            await arrays_of(page).get_by_role("button", name="Received 0 user").click()
            text = arrays_of(page).get_by_label("Text", exact=True)
            await expect(text).to_be_visible()
            assert len(await text.text_content() or "") == _PIECE_CHARS
            await page.get_by_role("button", name="Show more of this text").click()
            await expect(page.get_by_text("220,000 of 1,000,000 characters")).to_be_visible()
            widths = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert widths[0] <= widths[1]


async def test_thousands_of_messages_are_loaded_and_drawn_page_by_page(browser: Browser) -> None:
    async with ToyUpstream(window=_WIDE) as toy, running_gateway(make_settings(toy, more=OPEN)) as gateway:
        roles = ("user", "assistant")
        messages: list[object] = [{"role": roles[n % 2], "content": f"Message {n}."} for n in range(3_001)]
        identity = await ask(gateway, messages)
        async with looking(browser, gateway.admin_port, Look(path=f"#/conversations/{identity}")) as page:
            items = arrays_of(page).get_by_role("listitem")
            await expect(items).to_have_count(60)
            button = page.get_by_role("button", name="Show more messages")
            for shown in (120, 180, 240):
                await button.click()
                await expect(items).to_have_count(shown)
            await expect(items.last).to_contain_text("Message 239.")
