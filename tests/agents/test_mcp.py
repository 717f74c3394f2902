"""Programs from npm search what was summarized, at `/mcp`: both TypeScript SDKs, and Codex.

`make test-agents`
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.agents.client import KEY, copy_program, npm_program, run_in_node
from tests.agents.clients import find_client
from tests.agents.errand import Errand, Size
from tests.agents.trial import make_place, run_command
from tests.through.test_mcp import LOSSY, play
from tests.toy.house import make_settings
from tests.toy.product import serve
from tests.toy.reply import Reply, ToolCall
from tests.toy.upstream import ToyUpstream

pytestmark = [pytest.mark.agents, pytest.mark.timeout(600)]

_PROGRAM = "mcp_client.mjs"
_KEPT_UNDER = re.compile(r"searched under the conversation id (\w+)\.")
_WINDOW = 24_000
_SIZE = Size(turns=1, steps=30, file_tokens=1_200, reply_tokens=700)
_SERVER = """
[mcp_servers.history]
url = "{root_url}/mcp"
bearer_token_env_var = "GATEWAY_KEY"
"""
_CALL = "call_search"


def _require(package: str) -> None:
    if shutil.which("npm") is None:
        pytest.skip(f"{package} comes from npm, and npm is missing")
    assert npm_program(package).exists(), f"{package} is not installed; see `make install-agents`"


@pytest.mark.parametrize(
    ("package", "protocol"),
    [("@modelcontextprotocol/sdk", "2025-11-25"), ("@modelcontextprotocol/client", "2026-07-28")],
)
async def test_a_typescript_client_finds_what_was_summarized_and_nothing_of_another(
    package: str, protocol: str, tmp_path: Path
) -> None:
    _require(package)
    more = LOSSY + f"tenants: [{{name: red, keys: [{KEY}]}}, {{name: blue, keys: [sk-blue]}}]\n"
    async with ToyUpstream(window=16_000) as toy, serve(make_settings(toy, more=more)) as gateway:
        talk, other = await play(gateway, toy, 3, KEY), await play(gateway, toy, 4, "sk-blue")
        place = make_place(tmp_path, gateway.root_url)
        copy_program(_PROGRAM)(place)
        calls = [
            ("search_history", {"conversation": talk.conversation, "query": talk.hidden[0]}),
            ("search_history", {"conversation": other.conversation, "query": other.hidden[0]}),
            ("list_files", {"conversation": talk.conversation}),
            ("read_message", {"conversation": talk.conversation, "position": 1_000_000}),
        ]
        (command,) = run_in_node(_PROGRAM, package, f"{gateway.root_url}/mcp")(place, [json.dumps(calls)])
        finished = await run_command(command, place)
    assert finished.status == 0, finished.output
    told: Any = json.loads(finished.output)
    assert told["protocol"] == protocol
    own, others, files, missing = told["results"]
    assert told["tools"] == ["search_history", "read_message", "list_files"]
    assert talk.hidden[0] in own["text"] and not own["isError"]
    assert others["isError"] and other.hidden[0] not in others["text"]
    assert "(" in files["text"] and not files["isError"]
    assert "No original" in missing["text"]


class Searcher:
    """A model that reads notes until it sees a summary; then it searches for the first note.

    result: what the search gave. hidden: whether the summary had lost the fact.
    """

    def __init__(self, errand: Errand, fact: str) -> None:
        self.errand = errand
        self.fact = fact
        self.result: str | None = None
        self.is_hidden = False

    def reply(self, request: Mapping[str, object]) -> Reply:
        if self.errand.is_side_call(request):
            return self.errand.reply(request)
        self.result = next(_find_results(request), None)
        if self.result is not None:
            return Reply(text=f"The search gave: {self.fact in self.result}")
        text = json.dumps(request)
        kept = _KEPT_UNDER.findall(text)
        if not kept:
            return self.errand.reply(request)
        self.is_hidden = self.fact not in text
        arguments = json.dumps({"conversation": kept[-1], "query": self.fact})
        call = ToolCall(id=_CALL, name="search_history", arguments=arguments, namespace="mcp__history")
        return Reply(text="Let me look it up.", tool_calls=(call,))


def _find_results(request: Mapping[str, object]) -> Iterator[str]:
    items: Any = request.get("input")
    for item in items if isinstance(items, list) else []:
        if item.get("type") == "function_call_output" and item.get("call_id") == _CALL:
            yield json.dumps(item["output"])


async def test_codex_searches_its_own_conversation(tmp_path: Path) -> None:
    _require("@openai/codex")
    errand = Errand(tmp_path / "project" / "notes", _SIZE)
    errand.write_notes()
    fact = (tmp_path / "project" / "notes" / "note_000.txt").read_text("utf-8").splitlines()[0]
    model, client = Searcher(errand, fact), find_client("Codex")
    async with ToyUpstream(window=_WINDOW) as toy, serve(make_settings(toy, more=LOSSY)) as gateway:
        toy.reply = model.reply
        place = make_place(tmp_path, gateway.root_url)
        client.prepare(place)
        with (place.home / "config.toml").open("a", encoding="utf-8") as settings:
            settings.write(_SERVER.format(root_url=gateway.root_url))
        (command,) = client.commands(place, errand.prompts)
        finished = await run_command(command, place)
    assert finished.status == 0, finished.output
    assert model.is_hidden and model.result is not None
    assert fact in model.result
    assert "The search gave: True" in finished.output
