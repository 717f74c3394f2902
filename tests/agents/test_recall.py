"""Programs whose model searches its history (`recall: tool`) end their task and never notice it.

`make test-agents`
"""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from gateway.wire.recall import RECALL_TOOL
from tests.agents.client import Client
from tests.agents.clients import claude_code, cline, codex, opencode, qwen_code
from tests.agents.errand import Errand, Size
from tests.agents.recalling import RecallingModel
from tests.agents.tap import Tap, Tapped
from tests.agents.trial import make_place, run_command
from tests.toy.counting import render_compact
from tests.toy.gateway import running_gateway
from tests.toy.upstream import Seen, ToyUpstream

pytestmark = [pytest.mark.agents, pytest.mark.timeout(600)]

_CLIENTS = [each.CLIENT for each in (opencode, qwen_code, cline, codex, claude_code)]
# Replies with a tool call: the first summary comes after about six of them, and the last search six later.
_STEPS = 18
_FILE_SHARE, _REPLY_SHARE = 0.05, 0.03
# Whatever of a search a client could have seen: the tool, and the ids of its calls.
_TRACES = (RECALL_TOOL.encode(), b"call_recall_")
# Of the sentence that begins every summary.
_FRAMING = "can be searched under the conversation id"
# The digest keeps no facts of old files.
_SETTINGS = """\
store: "memory:"
upstreams:
  default: {{base_url: "{base_url}", discover: false, formats: [chat, responses, messages]}}
models:
  - {{match: {model}, context: {window}}}
policies:
  default: {{recall: tool, recall_tokens: 500, summary: {{method: digest, max_tokens: 256}}}}
"""


@pytest.mark.parametrize("client", _CLIENTS, ids=lambda client: client.name)
async def test_an_agent_never_notices_that_its_model_searches(client: Client, tmp_path: Path) -> None:
    if not client.program.exists():
        pytest.skip(f"{client.package} is not installed; see `make install-agents`")
    errand = _make_errand(client, tmp_path / "project" / "notes")
    model = RecallingModel(errand, _read_facts(errand.folder))
    async with ToyUpstream(window=client.window, rules=client.rules) as toy:
        toy.reply = model.reply
        settings = _SETTINGS.format(base_url=toy.base_url, model=client.model, window=client.window)
        async with running_gateway(settings) as gateway, Tap(gateway.root_url) as tap:
            place = make_place(tmp_path, tap.root_url)
            client.prepare(place)
            finished = [await run_command(each, place) for each in client.commands(place, errand.prompts)]
    shown = "".join(process.output for process in finished)
    assert [process.status for process in finished if process.status] == [], shown[-2_000:]
    assert [words for words in map(errand.goodbye, range(client.turns)) if words not in shown] == []
    assert len(model.found) == 3 and model.found == model.hidden
    assert [seen.refusal for seen in toy.requests if seen.refusal] == []
    assert [tapped.path for tapped in tap.exchanges if _is_bad(tapped)] == []
    kept = [shown.encode(), *(tapped.body for tapped in tap.exchanges), *_read_files(place.home)]
    assert sum(errand.goodbye(0).encode() in each for each in kept) >= 2
    assert [each[:200] for each in kept if any(trace in each for trace in _TRACES)] == []
    _check_prefixes([seen for seen in toy.chats if not errand.is_side_call(seen.request)])


def _make_errand(client: Client, notes: Path) -> Errand:
    size = Size(
        turns=client.turns,
        steps=_STEPS // client.turns,
        file_tokens=int(_FILE_SHARE * client.window),
        reply_tokens=int(_REPLY_SHARE * client.window),
    )
    errand = Errand(notes, size, client.last_command)
    errand.write_notes()
    return errand


def _read_facts(notes: Path) -> Sequence[str]:
    """The first line of each of the oldest notes."""
    return [path.read_text("utf-8").partition("\n")[0] for path in sorted(notes.iterdir())[:3]]


def _is_bad(tapped: Tapped) -> bool:
    return tapped.broken or tapped.status != 200


def _read_files(home: Path) -> Iterator[bytes]:
    """What the client has written down: its sessions and logs."""
    return (path.read_bytes() for path in home.rglob("*") if path.is_file())


def _check_prefixes(sent: Sequence[Seen]) -> None:
    """From the first compaction on the tool stands in each request. Requests with the same summary begin with
    the one before them, recalled pieces and all.
    """
    begins = [index for index, seen in enumerate(sent) if _offers(seen)]
    assert begins == list(range(begins[0], len(sent)))
    later_of_recalled = 0
    for before, after in pairwise(map(_read_items, sent)):
        if _head(before) == _head(after):
            assert after[: len(before)] == before
            later_of_recalled += any("call_recall_" in item for item in before)
    assert later_of_recalled >= 3


def _offers(seen: Seen) -> bool:
    return RECALL_TOOL in json.dumps(seen.request.get("tools"))


def _read_items(seen: Seen) -> list[str]:
    """Without cache marks, which move."""
    assert seen.dialect is not None
    return [render_compact(item) for item in seen.dialect.items(seen.whole)]


def _head(items: Sequence[str]) -> Sequence[str] | None:
    """Up to the summary. A client may edit what is before it, too."""
    place = next((place for place, item in enumerate(items) if _FRAMING in item), None)
    return None if place is None else items[: place + 1]
