"""Programs whose model searches its history (`recall: tool`) end their task and never notice it.

`make test-agents`
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.agents.client import Client
from tests.agents.clients import find_client
from tests.agents.errand import Errand, find_names
from tests.agents.tap import Tap, Tapped
from tests.agents.trial import make_errand, make_place, run_command
from tests.toy.counting import render_compact
from tests.toy.product import serve
from tests.toy.recalling import find_results, make_recall
from tests.toy.reply import Reply, ToolCall
from tests.toy.upstream import Seen, ToyUpstream

pytestmark = [pytest.mark.agents, pytest.mark.timeout(600)]

_CLIENTS = [find_client(name) for name in ("opencode", "Qwen Code", "Cline", "Codex", "Claude Code")]
# Replies with a tool call: the first summary comes after about six of them, and the last search six later.
_STEPS = 18
# Replies of the errand between two moments, so that each has later requests before the next one.
_REST = 2
# Whatever of a search a client could have seen: the tool, and the ids of its calls.
# The name of the gateway's tool.
RECALL_TOOL = "recall_history"
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


class RecallingModel:
    """A model on an errand that also searches, once it is offered the tool: at the first token, beside a call
    of the client's own tool, and after some text.

    For `ToyUpstream.reply`. facts: what it searches for, one at each moment.

    hidden: those that the request before the search did not hold. found: those that the results behind it
    hold.
    """

    def __init__(self, errand: Errand, facts: Sequence[str]) -> None:
        self.errand = errand
        self.hidden: list[str] = []
        self.found: list[str] = []
        self._facts = list(facts)
        self._moments = [self._first, self._beside, self._after_text]
        self._searched: str | None = None
        self._pause = 0

    def reply(self, request: Mapping[str, object]) -> Reply:
        if self.errand.is_side_call(request):
            return self.errand.reply(request)
        self._look_for_results(request)
        if self._pause or not self._moments or RECALL_TOOL not in find_names(request):
            self._pause = max(0, self._pause - 1)
            return self.errand.reply(request)
        self._pause = _REST
        return self._moments.pop(0)(request)

    def _look_for_results(self, request: Mapping[str, object]) -> None:
        if self._searched is not None and self._searched in find_results(dict(request)):
            self.found.append(self._searched)
        self._searched = None

    def _search(self, request: Mapping[str, object]) -> ToolCall:
        self._searched = self._facts.pop(0)
        if self._searched not in render_compact(request):
            self.hidden.append(self._searched)
        return make_recall(len(self._facts), self._searched)

    def _first(self, request: Mapping[str, object]) -> Reply:
        return Reply(text=None, tool_calls=(self._search(request),))

    def _after_text(self, request: Mapping[str, object]) -> Reply:
        return Reply(text="Let me look it up.", tool_calls=(self._search(request),))

    def _beside(self, request: Mapping[str, object]) -> Reply:
        """Put off at the end of a turn of the user, where the errand calls nothing."""
        reply = self.errand.reply(request)
        if not reply.tool_calls:
            self._pause = 0
            self._moments.insert(0, self._beside)
            return reply
        return replace(reply, tool_calls=(self._search(request), *reply.tool_calls))


@pytest.mark.parametrize("client", _CLIENTS, ids=lambda client: client.name)
async def test_an_agent_never_notices_that_its_model_searches(client: Client, tmp_path: Path) -> None:
    if not client.program.exists():
        pytest.skip(f"{client.package} is not installed; see `make install-agents`")
    errand = make_errand(client, tmp_path / "project" / "notes", _STEPS)
    model = RecallingModel(errand, _read_facts(errand.folder))
    async with ToyUpstream(window=client.window, rules=client.rules) as toy:
        toy.reply = model.reply
        settings = _SETTINGS.format(base_url=toy.base_url, model=client.model, window=client.window)
        async with serve(settings) as gateway, Tap(gateway.root_url) as tap:
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
