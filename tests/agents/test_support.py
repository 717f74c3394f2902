"""What plays the model, measures a client and stands between it and the gateway; no agent is needed."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from tests.agents.client import Client
from tests.agents.clients import CLIENTS
from tests.agents.errand import REPORT, Errand, Size, find_ending, find_tools
from tests.agents.material import count_material, fewest_summaries, measure_material, most_summaries
from tests.agents.tap import Tap
from tests.toy.chat import CHAT
from tests.toy.counting import TokenCounter
from tests.toy.delivery import Delivery, Ending, RawAnswer
from tests.toy.economics import Sizes
from tests.toy.reply import Reply
from tests.toy.upstream import ToyUpstream

_HERE = Path(__file__).parent
_STRING = {"type": "string"}
_READER = {"type": "object", "properties": {"path": _STRING}, "required": ["path"]}
_SHELL = {
    "type": "object",
    "properties": {"command": _STRING, "quiet": {"type": "boolean"}, "why": _STRING},
    "required": ["command", "quiet", "why"],
}
_ASKED = {"tools": [{"type": "function", "function": {"name": "read_note", "parameters": _READER}}]}
_SIZE = Size(turns=2, steps=5, file_tokens=100, reply_tokens=20)


def _find_locked(client: Client) -> str:
    """The version in npm's lock, or the line of the venv's lock."""
    if client.needs_npm:
        packages = json.loads((_HERE / "npm" / "package-lock.json").read_text("utf-8"))["packages"]
        return str(packages[f"node_modules/{client.package}"]["version"])
    venv = client.program.parents[1].name
    lines = (_HERE / "requirements" / f"{venv}.lock").read_text("utf-8").splitlines()
    found = (line.split("==")[1] for line in lines if line.startswith(f"{client.package}=="))
    return next(found).removesuffix(" \\")


def test_the_table_names_each_program_once_and_its_locked_version() -> None:
    assert len({client.name for client in CLIENTS}) == len(CLIENTS)
    wrong = {client.name: client.version for client in CLIENTS if client.version != _find_locked(client)}
    assert wrong == {}


def _take_turn(errand: Errand) -> Sequence[Reply]:
    return [errand.reply(_ASKED) for _ in range(errand.size.steps + 1)]


def test_each_turn_reads_files_that_are_there_and_ends_with_its_own_last_words(tmp_path: Path) -> None:
    errand = Errand(tmp_path, _SIZE)
    errand.write_notes()
    assert errand.facts == (errand.task,)
    written, ids = {str(path) for path in tmp_path.iterdir()}, set[str]()
    for turn in range(_SIZE.turns):
        *steps, end = _take_turn(errand)
        assert [len(reply.tool_calls) for reply in steps] == [1, 1, 1, 1, 2]
        assert (end.text, end.tool_calls) == (errand.goodbye(turn), ())
        calls = [call for reply in steps for call in reply.tool_calls]
        assert all(any(path in call.arguments for path in written) for call in calls)
        ids |= {call.id for call in calls}
    assert len(ids) == 12 and len(set(errand.facts)) == len(errand.facts) > _SIZE.steps


def test_a_request_without_tools_is_a_side_call_and_one_that_continues_a_thread_is_none(
    tmp_path: Path,
) -> None:
    errand, quiet = Errand(tmp_path, _SIZE), Errand(tmp_path, _SIZE)
    assert errand.is_side_call({"messages": []})
    assert not errand.is_side_call({"messages": [], "thread": {"type": "continue"}})
    assert errand.reply({"messages": []}).tool_calls == ()
    assert _take_turn(errand) == _take_turn(quiet)


def test_some_clients_want_a_whole_file_or_a_command_in_place_of_calls(tmp_path: Path) -> None:
    errand = Errand(tmp_path, Size(turns=2, steps=0, file_tokens=100, reply_tokens=20))
    text = errand.reply({"messages": []}).text or ""
    assert f"\n{REPORT}\n```\n" in text and text.endswith(errand.goodbye(0))
    errand = Errand(tmp_path, _SIZE, "echo DONE")
    (call,) = _take_turn(errand)[-1].tool_calls
    assert f"echo DONE && echo {errand.goodbye(0)}" in call.arguments


@pytest.mark.parametrize(
    ("tool", "wanted"),
    [
        ({"type": "function", "function": {"name": "bash", "parameters": _SHELL}}, {"command": "cat /a"}),
        ({"type": "function", "name": "bash", "parameters": _SHELL}, {"command": "cat /a"}),
        (
            {"name": "bash", "input_schema": _SHELL},
            {"command": "cat /a", "quiet": False, "why": "Read notes"},
        ),
        ({"name": "read", "input_schema": _READER}, {"path": "/a"}),
        ({"name": "write", "input_schema": _READER}, None),
        ({"name": "task", "input_schema": {"properties": {"prompt": _STRING, "command": _STRING}}}, None),
        ({"type": "web_search"}, None),
    ],
)
def test_a_tool_that_shows_a_file_is_found_in_each_api_and_called_with_all_it_requires(
    tool: object, wanted: dict[str, object] | None
) -> None:
    called = [json.loads(found.read("call_1", "/a").arguments) for found in find_tools({"tools": [tool]})]
    assert (called == []) if wanted is None else (wanted.items() <= called[0].items())


@pytest.mark.parametrize(
    ("name", "said"), [("final_answer", {"answer": "Done."}), ("complete", {}), ("read", None)]
)
def test_the_tool_that_ends_a_turn_is_called_with_the_last_words(name: str, said: object) -> None:
    call = find_ending({"tools": [{"name": name, "input_schema": _READER}]}, "call_end_0", "Done.")
    assert (None if call is None else json.loads(call.arguments)) == said


def test_a_client_brings_the_same_whether_it_sends_all_the_newest_or_what_is_new() -> None:
    counter, replies = TokenCounter(), [Reply(text=f"Reply number {number}.") for number in range(4)]
    history: list[object] = [{"role": "system", "content": "You read."}]
    for number, reply in enumerate(replies):
        history.append({"role": "user", "content": f"Read note {number}, please."})
        history.append({"role": "assistant", "content": reply.text})
    whole = [{"messages": history[: 2 + 2 * turn]} for turn in range(4)]
    newest = [{"messages": [history[0], *history[1 : 2 + 2 * turn][-3:]]} for turn in range(4)]
    new = [whole[0], *({"messages": history[1 + 2 * turn : 2 + 2 * turn]} for turn in range(1, 4))]
    sizes = measure_material(CHAT, counter, whole)
    assert count_material(sizes) == CHAT.count(counter, whole[-1])
    assert measure_material(CHAT, counter, newest) == sizes
    assert measure_material(CHAT, counter, new, replies) == sizes


# The hard threshold is at 12,000. A compaction leaves 1,000 + 1,500 + a tail of 2,000, so there is room for
# seven more groups and the one that passes the threshold.
@pytest.mark.parametrize(("groups", "fewest", "most"), [(11, 0, 2), (13, 1, 3), (30, 3, 6)])
def test_the_fewest_summaries_follow_from_the_room_that_each_makes(
    groups: int, fewest: int, most: int
) -> None:
    assert fewest_summaries(Sizes(1_000, (1_000,) * groups), 16_000) == fewest
    assert most_summaries(fewest) == most


_BODY = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi."}]}).encode()
_HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer sk-toy"}


async def test_an_exchange_passes_the_tap_unchanged_and_can_be_repeated() -> None:
    async with ToyUpstream() as toy, Tap(toy.root_url) as tap, aiohttp.ClientSession() as client:
        path = "/v1/chat/completions?a=%2F"
        url = URL(tap.root_url + path, encoded=True)
        async with client.post(url, data=_BODY, headers=_HEADERS) as answer:
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        await tap.repeat(tap.exchanges[0])
        assert [(seen.path, seen.body) for seen in toy.requests] == [(path, _BODY)] * 2
        assert dict(toy.requests[0].headers)["Authorization"] == "Bearer sk-toy"
        assert [(tapped.status, tapped.broken) for tapped in tap.exchanges] == [(200, False)] * 2


@pytest.mark.parametrize("ending", ["close", "abort"])
async def test_an_answer_that_was_broken_off_is_told_from_a_client_that_has_read_enough(
    ending: Ending,
) -> None:
    delivery = Delivery(stop_after_bytes=50, ending=ending)
    broken = RawAnswer(pieces=(b"x" * 99,), length=False, delivery=delivery)
    async with ToyUpstream() as toy, Tap(toy.root_url) as tap, aiohttp.ClientSession() as client:
        toy.intercept = lambda _: broken
        with suppress(aiohttp.ClientError):
            async with client.post(f"{tap.root_url}/v1/chat/completions", data=_BODY) as answer:
                await answer.read()
        toy.intercept = lambda _: None
        async with client.post(f"{tap.root_url}/v1/chat/completions", data=_BODY) as answer:
            await answer.content.readany()
            answer.close()
        assert [tapped.broken for tapped in tap.exchanges] == [True, False]
