"""The plan that a replay prints is the plan that a running gateway makes for the same requests.

The gateway stands between a client and the toy upstream, on real sockets. The toy reports the usage that the
replay has found, and writes the summaries that the replay has assumed.
"""

import asyncio
import io
import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from gateway.core.sizing.usage import Usage
from gateway.replay.recordings import RecordedRequest
from gateway.replay.results import PlayedSource, RequestRun
from gateway.replay.simulation import make_summary_text
from gateway.replay.sources import find_sources, read_source
from gateway.settings.load import load_preset
from tests.decisions.replayed import play
from tests.shared_data import SHARED, requires_shared
from tests.toy.delivery import RawAnswer
from tests.toy.product import serve
from tests.toy.transcripts import MODEL
from tests.toy.upstream import Seen, ToyUpstream

_TRANSCRIPTS = SHARED / "data" / "transcripts"
# A few kinds of sessions: with and without recorded usage, of one and of many turns, with summaries and
# prune batches.
_FEW = (
    ("entire-claude-code/42-d34ec97ff8-0.json", "adaptive", 64_000),
    ("entire-claude-code/17-55e38d324c-0-coll.json", "rolling", 64_000),
    ("entire-claude-code/cd-86afb9c782-0-coll.json", "prune_only", 64_000),
    ("swe-agent/ctf-web-i-got-id-demo.json", "adaptive", 12_000),
    ("swe-agent/ctf-crypto-katy.json", "opencode", 16_000),
    ("tau-bench-airline/t33-trial0.json", "recent", 10_000),
    ("openhands-sdk/anthropic__claude-sonnet-4-20250514-1757015046.707.json", "utilization", 8_000),
)
_POLICIES = ("adaptive", "opencode", "prune_only", "recent", "rfc007", "rolling", "utilization")
# How the question for a summary begins, at the end of the conversation's own request.
_RIDE = load_preset("adaptive").prompts.ride.partition("{kept}")[0]
_WINDOWS = (16_000, 64_000, 128_000, 200_000)


def _list_all() -> list[str]:
    found = sorted(_TRANSCRIPTS.glob("*/*.json")) if _TRANSCRIPTS.is_dir() else []
    return [str(path.relative_to(_TRANSCRIPTS)) for path in found]


def _make_settings(toy: ToyUpstream, policy: str, window: int) -> str:
    return (
        f'store: "memory:"\nupstreams: {{default: {{base_url: "{toy.base_url}", discover: false}}}}\n'
        f'models: [{{match: "*", context: {window}}}]\npolicies: {{default: {{preset: {policy}}}}}\n'
    )


class _Script:
    """What the toy answers: to requests in their order, and to calls for summaries in theirs."""

    def __init__(self, runs: Sequence[RequestRun], seen: list[Seen]) -> None:
        self.seen = seen
        self.usages = deque(Usage(run.sent, run.output, run.cache_read) for run in runs)
        self.calls = deque(call for run in runs for call in run.calls)

    def answer(self, seen: Seen) -> RawAnswer:
        # The toy keeps what it has seen: of a long session that is a gigabyte.
        self.seen.clear()
        messages = seen.request["messages"]
        assert isinstance(messages, list)
        content = str(messages[-1].get("content"))
        is_riding = _RIDE in content
        asked = content[content.rfind(_RIDE) :]
        # Of the others, only calls for summaries are streamed.
        if not is_riding and not seen.request.get("stream"):
            return _answer("Done.", self.usages.popleft())
        call = self.calls.popleft()
        assert call.is_riding == is_riding
        text = make_summary_text(call.output_tokens, asked if is_riding else "")
        return _answer(text, call.usage)


def _answer(text: str, usage: Usage) -> RawAnswer:
    shown = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.output_tokens}
    cached = {"prompt_tokens_details": {"cached_tokens": usage.cached_tokens}} if usage.cached_tokens else {}
    response = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": MODEL,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {**shown, "total_tokens": usage.total, **cached},
    }
    return RawAnswer(pieces=(json.dumps(response).encode(),))


async def _run_gateway(
    toy: ToyUpstream, settings: str, requests: Sequence[RecordedRequest]
) -> list[dict[str, str]]:
    """The gateway's headers of each response. Each request waits for what the one before has started."""
    found = []
    headers = {"Authorization": "Bearer replay-0-0", "Content-Type": "application/json"}
    async with serve(settings) as gateway, aiohttp.ClientSession(headers=headers) as client:
        for request in requests:
            async with client.post(
                gateway.root_url + request.path, data=io.BytesIO(request.body)
            ) as response:
                assert response.status == 200, await response.text()
                await response.read()
                found.append(
                    {name: text for name, text in response.headers.items() if name.startswith("x-gateway-")}
                )
            await gateway.at_rest()
    return found


def _describe(run: RequestRun) -> dict[str, str]:
    """The headers that the gateway should send."""
    return {
        "x-gateway-conversation": run.conversation,
        "x-gateway-plan": run.plan,
        "x-gateway-tokens": f"received={run.estimated_received}, sent={run.estimated_sent}",
    }


async def _compare(file: Path, policy: str, window: int, folder: Path) -> None:
    async with ToyUpstream() as toy:
        settings = _make_settings(toy, policy, window)
        played = await _play_in_thread(file, folder, settings)
        runs = played.played[0].requests
        script = _Script(runs, toy.requests)
        toy.intercept = script.answer
        requests = read_source(find_sources([file]).found[0], MODEL).requests
        headers = await _run_gateway(toy, settings, requests)
        assert not script.usages
        assert not script.calls, "the gateway made fewer summary calls"
    for number, (found, run) in enumerate(zip(headers, runs, strict=True), start=1):
        expected = _describe(run)
        assert {name: found.get(name) for name in expected} == expected, f"request {number}"
        assert found.get("x-gateway-warning") == run.warning, f"request {number}"


async def _play_in_thread(file: Path, folder: Path, settings: str) -> PlayedSource:
    """The replay has an event loop of its own."""
    return (await asyncio.to_thread(play, [file], folder, settings=settings, window=None))[0]


@requires_shared
@pytest.mark.parametrize(("name", "policy", "window"), _FEW)
async def test_the_plan_of_a_replay_is_that_of_a_serve(
    name: str, policy: str, window: int, tmp_path: Path
) -> None:
    await _compare(_TRANSCRIPTS / name, policy, window, tmp_path)


@requires_shared
def test_these_sessions_are_compacted_and_pruned(tmp_path: Path) -> None:
    """Otherwise the test above would compare little."""
    plans: set[str] = set()
    calls = 0
    for name, policy, window in _FEW:
        settings = f'models: [{{match: "*", context: {window}}}]\n'
        played = play([_TRANSCRIPTS / name], tmp_path, policies=[policy], settings=settings, window=None)[
            0
        ].played[0]
        plans |= {run.plan for run in played.requests}
        calls += sum(len(run.calls) for run in played.requests)
    assert plans >= {"passthrough", "pivot", "pruned"}
    assert calls


@requires_shared
@pytest.mark.exhaustive
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("at", range(len(_list_all())), ids=_list_all())
async def test_all_transcripts_under_some_policy(at: int, tmp_path: Path) -> None:
    """Windows and policies take turns, so that most pairs of them are tried."""
    policy, window = _POLICIES[at % len(_POLICIES)], _WINDOWS[at % len(_WINDOWS)]
    await _compare(_TRANSCRIPTS / _list_all()[at], policy, window, tmp_path)
