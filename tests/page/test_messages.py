"""The array as received beside the array as sent, opened to the original; hostile texts are only texts."""

import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from playwright.async_api import Browser, Locator, Page, Route, expect

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


# What JavaScript asks of a value to make text of it.
_NO_TEXT = {"toString": 1, "valueOf": 1, "toJSON": 1}
_STRANGE: tuple[object, ...] = (_NO_TEXT, 7, None, True, ["a", _NO_TEXT], {"constructor": None, "length": -1})


def make_strange_messages(value: object) -> list[object]:
    """A value where a text should be, in every field that the page reads, in all three formats."""
    parts = [
        {"type": value, "text": value},
        *({"type": kind, "text": value, "thinking": value} for kind in ("text", "output_text", "thinking")),
        {"type": "tool_use", "id": value, "name": value, "input": value},
        {"type": "tool_result", "tool_use_id": value, "content": value, "is_error": value},
        {"type": "image", "source": {"data": value, "url": value, "media_type": value}},
        {"type": "image_url", "image_url": {"url": value}},
    ]
    calls = [{"id": value, "type": value, "function": {"name": value, "arguments": value}}, value]
    return [
        {"role": value, "content": value, "name": value},
        {"role": "user", "content": value},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": value, "tool_calls": calls, "refusal": value, "reasoning": value},
        {"type": "function_call", "name": value, "call_id": value, "arguments": value},
        {"type": "function_call_output", "call_id": value, "output": value},
        {"type": "reasoning", "summary": [value, {"text": value}], "encrypted_content": value},
        value,
    ]


async def read_arrays(page: Page, change: Callable[[dict[str, Any]], None]) -> None:
    """From now on the page is told other messages than the gateway has, as some format may let them pass."""

    async def answer(route: Route) -> None:
        response = await route.fetch()
        told = await response.json()
        change(told)
        await route.fulfill(response=response, json=told)

    await page.route("**/messages?*", answer)


@pytest.mark.parametrize("value", _STRANGE, ids=repr)
async def test_a_value_that_is_no_text_hides_no_message(browser: Browser, value: object) -> None:
    strange = make_strange_messages(value)

    def change(told: dict[str, Any]) -> None:
        row = {"position": None, "role": value, "fate": "folded", "tokens": 1, "digest": None}
        told["received"] = [{**row, "message": message} for message in strange]
        told["sent"] = []
        told["received"].append(
            {**row, "role": "user", "message": {"role": "user", "content": "The last one."}}
        )

    async with opened(browser) as (_, gateway, page):
        await ask(gateway, [{"role": "user", "content": "Begin."}])
        await read_arrays(page, change)
        await open_newest(page)
        await arrays_of(page).locator(".group").click()
        lines = arrays_of(page).locator(".group-list > li > button")
        await expect(lines).to_have_count(len(strange) + 1)
        await expect(lines.last).to_contain_text("The last one.")
        for line in await lines.all():
            await line.click()
        assert await arrays_of(page).get_by_label("Text", exact=True).count() >= len(strange)
        await expect(page.get_by_text("This row cannot be shown")).to_have_count(0)


async def test_a_row_that_cannot_be_drawn_leaves_the_others(browser: Browser) -> None:
    """Such as one with values that are nested deeper than a browser can write."""
    async with opened(browser) as (_, gateway, page):
        await ask(gateway, [{"role": "user", "content": text} for text in ("First.", "Second.", "Third.")])
        await page.add_init_script(
            "const write = JSON.stringify; JSON.stringify = (value, ...more) => {"
            "  if (value?.is === 'too deep') throw new RangeError('Maximum call stack size exceeded');"
            "  return write(value, ...more); };"
        )
        await page.reload()

        def change(told: dict[str, Any]) -> None:
            told["received"][1]["message"] = {"role": "user", "content": {"is": "too deep"}}

        await read_arrays(page, change)
        await open_newest(page)
        await expect(arrays_of(page).get_by_text("This row cannot be shown")).to_have_count(1)
        for text in ("First.", "Third."):
            await expect(arrays_of(page).get_by_text(text).first).to_be_visible()
        await expect(page.get_by_role("heading", name="Compaction log")).to_be_visible()


async def test_what_a_client_sends_as_names_hides_nothing(browser: Browser) -> None:
    """Whatever of it the gateway lets pass."""
    async with opened(browser) as (_, gateway, page):
        messages: list[object] = [
            {"role": "user", "content": [{"type": "text", "text": _NO_TEXT}]},
            {"role": "assistant", "content": [{"type": _NO_TEXT, "text": 1}]},
            {"role": "user", "content": "Go on."},
        ]
        body = json.dumps({"model": "<b>m</b>", "messages": messages, "user": _NO_TEXT})
        headers = {"Authorization": "Bearer sk-toy", "x-gateway-session": "<i>label</i>"}
        url = f"{gateway.base_url}/chat/completions"
        async with aiohttp.ClientSession(headers=headers) as client, client.post(url, data=body) as response:
            assert response.status == 200, await response.read()
        await expect(page.get_by_role("table", name="Conversations")).to_contain_text("<b>m</b>")
        await expect(page.get_by_role("link", name="<i>label</i>")).to_be_visible()
        await open_newest(page)
        lines = arrays_of(page).get_by_role("button", name="Received")
        await expect(lines).to_have_count(len(messages))
        for line in await lines.all():
            await line.click()
        await expect(arrays_of(page).get_by_label("Text", exact=True)).to_have_count(len(messages))
