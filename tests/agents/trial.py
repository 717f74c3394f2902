"""Runs one client on an errand, behind a gateway with a small window, and returns a row of numbers."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest

from tests.agents.client import Client, Command, Place, bare_environment
from tests.agents.errand import Errand, Request, Size
from tests.agents.material import count_material, fewest_summaries, measure_material
from tests.agents.tap import Tap, Tapped
from tests.toy.counting import render_compact
from tests.toy.dialects import find_dialect
from tests.toy.economics import Sizes
from tests.toy.product import Product, serve
from tests.toy.upstream import ToyUpstream

_PATIENCE_SECONDS = 300
# Share of the window for each step: 42 steps make more than three windows.
_FILE_SHARE, _REPLY_SHARE, _STEPS = 0.05, 0.03, 42
# A side call that holds so much of a window does not ask for a title; it carries the history.
_HISTORY_SHARE = 0.25
_COUNT = re.compile(r"^(gateway_\w+_total)(?:\{(.*)\})? ([0-9.e+]+)$", re.MULTILINE)
_ENDPOINTS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def require_client(client: Client) -> None:
    if client.needs_npm and shutil.which("npm") is None:
        pytest.skip(f"{client.name} comes from npm, and npm is missing")
    assert client.program.exists(), f"{client.package} is not installed; see what `make install-agents` says"


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A process that came to its end. output: both streams, as text."""

    status: int
    output: str


class Row:
    """One run. Each side call counts twice: it was repeated in the end."""

    def __init__(self, client: Client, toy: ToyUpstream, tap: Tap, errand: Errand) -> None:
        self.client, self.toy, self.errand = client, toy, errand
        dialect = find_dialect(_ENDPOINTS[client.api])
        assert dialect is not None
        self._dialect = dialect
        self._asked = [tapped for tapped in tap.exchanges if _is_to(tapped, _ENDPOINTS[client.api])]
        self._bodies: list[Request] = [json.loads(tapped.body) for tapped in self._asked]
        self._main = [body for body in self._bodies if not errand.is_side_call(body)]
        both = zip(self._asked, self._bodies, strict=True)
        self._side_calls = [(tapped, body) for tapped, body in both if errand.is_side_call(body)]
        self.counts: Mapping[str, int] = {}
        self.finished: tuple[Finished, ...] = ()
        self.seconds = 0.0
        # What the client brought.
        held = errand.replies if client.sends == "new" else ()
        self.sizes: Sizes = measure_material(dialect, toy.counter, self._main, held)

    def count_all(self) -> dict[str, int]:
        """summary calls: received by the upstream."""
        return {
            "floor": self.sizes.floor_tokens,
            "requests": len(self._asked),
            "side calls": len(self._side_calls),
            "summaries": self.counts.get('gateway_compactions_total{kind="summary",result="done"}', 0),
            "digests": self.counts.get('gateway_compactions_total{kind="digest",result="done"}', 0),
            "summary calls": len(self.toy.summaries),
            "fewest": fewest_summaries(self.sizes, self.client.window),
            "prunings": self.counts.get("gateway_prunings_total{}", 0),
            "by client": self._count_client_compactions(),
            "refused": len(self.list_refusals()),
            "status": next((process.status for process in self.finished if process.status), 0),
        }

    @property
    def windows(self) -> float:
        return count_material(self.sizes) / self.client.window

    def _count_client_compactions(self) -> int:
        """A whole history that became shorter, or a side call that carries one."""
        lengths = [len(_messages(body)) for body in self._main] if self.client.sends == "all" else []
        shrunk = sum(later < earlier for earlier, later in pairwise(lengths))
        tokens = [self._dialect.count(self.toy.counter, body) for _, body in self._side_calls]
        return shrunk + sum(size > _HISTORY_SHARE * self.client.window for size in tokens)

    def count_touched_side_calls(self) -> int:
        """That did not go out as they came in."""
        sent = [_messages(seen.request) for seen in self.toy.chats]
        return sum(
            tapped.plan != "passthrough" or _messages(body) not in sent for tapped, body in self._side_calls
        )

    def list_refusals(self) -> list[str]:
        """Those of the strict upstream, then those that the client got."""
        upstream = [seen.refusal for seen in self.toy.requests if seen.refusal is not None]
        seen = [f"{tapped.path}: {tapped.status}" for tapped in self._asked if tapped.status != 200]
        return upstream + seen + [f"{tapped.path}: broken off" for tapped in self._asked if tapped.broken]

    def list_forgotten(self) -> list[str]:
        """Facts that the client has shown and the last request of the conversation did not hold upstream."""
        sent = [seen for seen in self.toy.chats if not self.errand.is_side_call(seen.request)]
        known = render_compact(sent[-1].whole) if sent else ""
        shown = b"".join(tapped.body for tapped in self._asked)
        return [fact for fact in self.errand.facts if fact.encode() in shown and fact not in known]

    def list_missing_words(self) -> list[str]:
        """Last words of turns that the client never showed."""
        shown = "".join(process.output for process in self.finished)
        goodbyes = map(self.errand.goodbye, range(self.errand.size.turns))
        return [words for words in goodbyes if words not in shown]


async def run_trial(client: Client, folder: Path) -> Row:
    """Toy, gateway, tap and client, on real sockets, in a folder of their own."""
    errand = make_errand(client, folder / "project" / "notes")
    toy = ToyUpstream(window=client.window, rules=client.rules)
    toy.reply = errand.reply
    started = time.monotonic()
    async with toy, _gateway(toy, client) as gateway, Tap(gateway.root_url) as tap:
        place = make_place(folder, tap.root_url)
        client.prepare(place)
        commands = client.commands(place, errand.prompts)
        finished = [await run_command(command, place) for command in commands]
        await _repeat_side_calls(tap, errand)
        counts = await _read_counts(gateway)
    # For finding the reason of a failure.
    (folder / "output.txt").write_text("\n".join(process.output for process in finished), "utf-8")
    row = Row(client, toy, tap, errand)
    row.counts, row.finished, row.seconds = counts, tuple(finished), time.monotonic() - started
    return row


def make_errand(client: Client, notes: Path, steps: int = _STEPS) -> Errand:
    size = Size(
        turns=client.turns,
        steps=steps // client.turns if client.has_tools else 0,
        file_tokens=int(_FILE_SHARE * client.window),
        reply_tokens=int(_REPLY_SHARE * client.window),
    )
    errand = Errand(notes, size, client.last_command)
    errand.write_notes()
    return errand


def _gateway(toy: ToyUpstream, client: Client) -> AbstractAsyncContextManager[Product]:
    """As an operator would write it: one upstream for all, the model's true window."""
    return serve(
        'store: "memory:"\nadmin: {port: 0}\nupstreams:\n'
        f'  default: {{base_url: "{toy.base_url}", discover: false, formats: [chat, responses, messages]}}\n'
        f"models:\n  - {{match: {client.model}, context: {client.window}}}\n"
    )


def make_place(folder: Path, root_url: str) -> Place:
    place = Place(home=folder / "home", project=folder / "project", root_url=root_url)
    place.home.mkdir(parents=True)
    place.project.mkdir(parents=True, exist_ok=True)
    return place


async def _repeat_side_calls(tap: Tap, errand: Errand) -> None:
    """Clients request titles early. Requested now, with summaries active, titles are still branches of their
    own.
    """
    asked = [tapped for tapped in tap.exchanges if _is_to(tapped, *_ENDPOINTS.values())]
    for tapped in [tapped for tapped in asked if errand.is_side_call(json.loads(tapped.body))]:
        await tap.repeat(tapped)


async def run_command(command: Command, place: Place) -> Finished:
    """To the end, or killed with all that it started. A second process group must not outlive the test."""
    process = await asyncio.create_subprocess_exec(
        *command.arguments,
        cwd=place.project,
        env=bare_environment(place) | dict(command.environment),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    typed = "".join(f"{line}\n" for line in command.lines).encode()
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            output, _ = await process.communicate(typed)
    except TimeoutError:
        output = b"(did not come to an end)"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return Finished(status=process.returncode or 0, output=output.decode("utf-8", "replace"))


async def _read_counts(gateway: Product) -> Mapping[str, int]:
    """The gateway's own metrics, by name and labels."""
    url = f"http://127.0.0.1:{gateway.admin_port}/metrics"
    async with aiohttp.ClientSession() as client, client.get(url) as answer:
        text = await answer.text()
    return {f"{name}{{{labels}}}": int(float(value)) for name, labels, value in _COUNT.findall(text)}


def _is_to(tapped: Tapped, *paths: str) -> bool:
    return tapped.method == "POST" and tapped.path.partition("?")[0] in paths


def _messages(body: Request) -> list[object]:
    found = body.get("messages") or body.get("input")
    return found if isinstance(found, list) else []
