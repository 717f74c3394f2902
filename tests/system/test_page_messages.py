"""What a conversation held, on the page: the array as received beside the array as sent, opened to the
original; the search for what is not sent any more; the files that a session has changed. Hostile texts are
only texts.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import aiohttp
import pytest
from playwright.async_api import Browser, Locator, Page, Route, expect

from tests.system.page import (
    FOLDED,
    LONG,
    OPEN,
    Look,
    check_accessibility,
    looking,
    open_newest,
    opened,
    play,
    requires_chromium,
)
from tests.toy.house import make_settings
from tests.toy.product import Product, serve
from tests.toy.tool_calls import ask as say
from tests.toy.tool_calls import call, edit
from tests.toy.upstream import ToyUpstream

pytestmark = [requires_chromium, pytest.mark.asyncio(loop_scope="module")]

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
JSON = dict[str, Any]
_TASK: Final = "Fix the parser of dates"


_SESSION: Final[Sequence[JSON]] = (
    say(_TASK),
    *edit(1, "/a.py", "one\n", "two\nthree\n"),
    *call(2, "bash", {"command": "make test"}, "ok"),
    *edit(3, "/b.py", "x\n", "y\n"),
    *edit(4, "/a.py", "two\n", "2\n"),
)
_TODOS: Final = {
    "todos": [
        {"content": "Write a test", "status": "in_progress", "priority": "high", "id": "1"},
        {"content": "Fix it", "status": "completed", "priority": "high", "id": "2"},
    ]
}
_HOSTILE_WISH: Final = "<img src=x onerror=alert(1)> \u202e and more"
_WHOLE: Final = [*_SESSION, *call(7, "todowrite", _TODOS, "ok"), say(_HOSTILE_WISH)]
_TOOLS: Final = [{"type": "function", "function": {"name": "edit", "parameters": {"type": "object"}}}]


async def work(gateway: Product, messages: Sequence[JSON], first: int = 0) -> None:
    """A request at the end of each user message and result, from the position `first` on."""
    async with aiohttp.ClientSession(headers={"Authorization": "Bearer sk-toy"}) as client:
        for end, message in enumerate(messages, 1):
            if end <= first or message["role"] == "assistant":
                continue
            body = {"model": "toy-model", "messages": list(messages[:end]), "tools": _TOOLS}
            async with client.post(f"{gateway.base_url}/chat/completions", json=body) as response:
                assert response.status == 200, await response.read()
    await gateway.at_rest()


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


async def post(gateway: Product, messages: list[object]) -> str:
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
        await post(gateway, [*messages, {"role": "user", "content": "Go on."}])
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
    async with ToyUpstream(window=_WIDE) as toy, serve(make_settings(toy, more=OPEN)) as gateway:
        identity = await post(gateway, [{"role": "user", "content": "x" * _LONG_LINE_CHARS}])
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
    async with ToyUpstream(window=_WIDE) as toy, serve(make_settings(toy, more=OPEN)) as gateway:
        roles = ("user", "assistant")
        messages: list[object] = [{"role": roles[n % 2], "content": f"Message {n}."} for n in range(3_001)]
        identity = await post(gateway, messages)
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
        await post(gateway, [{"role": "user", "content": "Begin."}])
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


async def test_a_folded_message_is_found_by_its_words(browser: Browser) -> None:
    async with opened(browser) as (toy, gateway, page):
        await play(gateway, toy, last=3)
        await open_newest(page)
        section = page.get_by_role("region", name="Search removed messages")
        await expect(section.get_by_text("Nothing was removed")).to_be_visible()
        await expect(section.get_by_role("searchbox")).to_have_count(0)
        await play(gateway, toy, first=3)
        field = section.get_by_role("searchbox", name="Words, paths or identifiers")
        await field.fill(FOLDED)
        await field.press("Enter")
        found = section.get_by_role("list", name="Pieces that were found")
        await expect(found.get_by_role("listitem").first).to_contain_text(FOLDED)
        await expect(section.get_by_role("status")).to_contain_text("found, the best first.")
        await field.fill("zzyzx-nowhere")
        await section.get_by_role("button", name="Search").click()
        await expect(section.get_by_role("status")).to_contain_text("Nothing found")
        await expect(found).to_have_count(0)


async def test_a_search_that_is_refused_says_why(browser: Browser) -> None:
    look = Look(forgiven=("403", "404"))
    async with opened(browser, look) as (toy, gateway, page):
        run = await play(gateway, toy)
        await open_newest(page)
        section = page.get_by_role("region", name="Search removed messages")
        await section.get_by_role("searchbox").fill(FOLDED)
        # Its policy is not known any more.
        deleted = f"http://127.0.0.1:{gateway.admin_port}/api/v1/conversations/{run.conversation}"
        assert (await page.request.delete(deleted)).status == 200
        await section.get_by_role("button", name="Search").click()
        await expect(section.get_by_role("alert")).to_contain_text("texts of conversations are not shown")


async def test_the_work_of_a_session_is_shown_with_its_diffs(browser: Browser) -> None:
    for scheme in ("light", "dark"):
        look = Look(scheme="dark") if scheme == "dark" else Look()
        async with opened(browser, look) as (_, gateway, page):
            await work(gateway, _WHOLE)
            await page.reload()
            table = page.get_by_role("table", name="Conversations")
            await expect(table.get_by_text(_TASK)).to_be_visible()
            await table.get_by_role("rowheader").first.get_by_role("link").first.click()
            section = page.get_by_role("region", name="Session", exact=True)
            await expect(section).to_contain_text("2 files")
            files = section.get_by_role("list", name="Files").get_by_role("listitem")
            await expect(files).to_have_count(2)
            await expect(files.first).to_contain_text("/a.py")
            await files.first.locator("summary").click()
            diff = section.get_by_role("region", name="Diff of /a.py")
            await expect(diff.locator(".added").first).to_have_text("+two")
            await expect(diff.locator(".removed").first).to_have_text("-one")
            await expect(section.get_by_text("Write a test")).to_be_visible()
            await expect(section.get_by_text("Fix it")).to_have_count(0)
            await expect(section.get_by_role("list", name="Commands")).to_contain_text("make test")
            await section.get_by_text("What the user asked").click()
            await expect(section.get_by_text(_HOSTILE_WISH)).to_be_visible()
            await check_accessibility(page)
