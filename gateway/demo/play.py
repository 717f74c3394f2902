"""Plays the demo: the agent through a gateway, then the same agent straight at the stand-in.

The agent sends its whole history each turn, does what the model asks for, and forgets nothing. It knows
nothing of gateways: it gets a base URL, as every client does.
"""

import argparse
import asyncio
import json
import logging
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import aiohttp

from gateway.admin.answers import TotalsPage
from gateway.app.gateway import Gateway
from gateway.command_line.admin_client import AdminClient
from gateway.command_line.figures import describe_saved, draw_bar
from gateway.demo.stand_in import MODEL, WINDOW_TOKENS, StandIn, count_tokens
from gateway.headers import X_GATEWAY_PLAN
from gateway.settings import ModelPrice, ModelRule, Settings, load_settings

FILES: Final = 24

_SYSTEM: Final = (
    "You are a careful coding agent. Read the files of the project one after the other with read_file. Say "
    "what you have found before each call. Change nothing."
)
_TASK: Final = (
    "Review the storage layer. Read every file, note one finding for each, and list all findings at the end. "
    "Next file: src/part_01.py"
)
_TOOLS: Final = (
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read a file of the project.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}},
                "required": ["path"],
            },
        },
    },
)
_LINE: Final = "    value_{0} = check(load('part_{1:02}', {0}), limit={2})  # as in part {3}\n"
_LINES: Final = 14


@dataclass(frozen=True)
class TurnReport:
    """One request of the agent. tokens: of what it sent, by the model's count. `headers`: in lower case."""

    messages: int
    tokens: int
    status: int
    headers: Mapping[str, str]
    # The model's text, or the message of the error.
    text: str


async def play(base_url: str) -> AsyncIterator[TurnReport]:
    """Works until the task is done, or a request fails."""
    history: list[dict[str, Any]] = [
        {"role": "system", "content": _SYSTEM},
        {"role": "user", "content": _TASK},
    ]
    async with aiohttp.ClientSession() as client:
        while True:
            body = {"model": MODEL, "messages": history, "tools": _TOOLS}
            async with client.post(f"{base_url}/chat/completions", json=body) as response:
                status, value = response.status, await response.json()
                headers = {name.lower(): text for name, text in response.headers.items()}
            message = value["choices"][0]["message"] if status == 200 else {}
            text = message.get("content") or value.get("error", {}).get("message") or ""
            yield TurnReport(len(history), count_tokens(body), status, headers, text)
            if "tool_calls" not in message:
                return
            history += [message, *map(_run_tool, message["tool_calls"])]


def _run_tool(call: Mapping[str, Any]) -> dict[str, Any]:
    path = json.loads(call["function"]["arguments"])["path"]
    return {"role": "tool", "tool_call_id": call["id"], "content": read_file(path)}


def read_file(path: str) -> str:
    """A made-up file of some 250 tokens with one finding, and the name of the next file."""
    number = int(path.removeprefix("src/part_").removesuffix(".py"))
    lines = (_LINE.format(n, number, number * 31 + n * 7, max(1, number - n)) for n in range(_LINES))
    ending = f"Next file: src/part_{number + 1:02}.py" if number < FILES else "This was the last file."
    return f"# {path}\n{''.join(lines)}{_make_finding(number)}\n{ending}"


def find_missing(text: str) -> list[str]:
    """The findings that a text lacks."""
    return [finding for finding in map(_make_finding, range(1, FILES + 1)) if finding not in text]


def _make_finding(number: int) -> str:
    return f"Finding {number}: limit {number * 31} of part {number} is written twice"


WriteText = Callable[[str], None]

_COLUMNS: Final = 80
_BAR_COLUMNS: Final = 20
_BEGINNING: Final = f"""\
An agent reads {FILES} files with a model whose window holds {WINDOW_TOKENS:,} tokens.
The model is a stand-in that understands nothing; the gateway before it is real.
"""
_PAGE: Final = """\
The gateway's page shows the session live, while this runs:
  http://127.0.0.1:{}/
"""
_KEPT: Final = "\nThe page stays open: http://127.0.0.1:{}/   Ctrl-C ends the demo."
_TABLE: Final = f"""\
         agent sends       model gets
turn  messages  tokens  messages  tokens  {X_GATEWAY_PLAN}  of the window"""
# That of a usual model. The stand-in has no cache, so it has no price for cached tokens either.
_PRICE: Final = ModelPrice(input=1.25, output=10)
_COMPACTOR: Final = "gateway.compactor"
# Names of plans, as the header has them.
_PLANS_WITH_SUMMARY: Final = ("pivot", "pivot+pruned")
# The tools of a real agent take longer than a compaction in the background. The demo's take no time, so it
# looks this often whether the gateway is done.
_LOOK_SECONDS: Final = 0.002
# After each of some twenty turns, for a person.
_PAUSE_SECONDS: Final = 0.3


def show_demo(options: argparse.Namespace) -> int:
    """The exit status."""
    # Slow enough to follow on the page.
    pause_seconds = _PAUSE_SECONDS if options.keep or sys.stdout.isatty() else 0.0
    keep = _wait_signal if options.keep else None
    went_well = asyncio.run(run_demo(partial(print, flush=True), keep=keep, pause_seconds=pause_seconds))
    return 0 if went_well else 1


async def _wait_signal() -> None:
    """Returns after SIGTERM or SIGINT."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, ended.set)
    await ended.wait()


async def run_demo(
    write: WriteText, *, keep: Callable[[], Awaitable[None]] | None = None, pause_seconds: float = 0.0
) -> bool:
    """Writes what happens, line by line. False if something did not go as it should.

    keep: returns when the page may close; None: it ends with the session. pause_seconds: after
    each turn, for people who watch.
    """
    async with StandIn() as model:
        settings = _make_settings(model.base_url)
        async with Gateway(settings) as gateway:
            page = _PAGE.format(gateway.admin_port) if gateway.admin_port else None
            for text in filter(None, (_BEGINNING, page, _TABLE)):
                write(text)
            with _showing_log(write):
                through = await _play_through(gateway, model, write, pause_seconds)
            direct = [turn async for turn in play(model.base_url)]
            for line in _compare(through, direct):
                write(_wrap(line))
            if gateway.admin_port:
                write(_wrap(await asyncio.to_thread(_read_saved, settings, gateway.admin_port)))
            problems = find_problems(through, direct)
            for problem in problems:
                write(f"The demo did not go as it should: {problem}")
            if keep is not None and gateway.admin_port:
                write(_KEPT.format(gateway.admin_port))
                await keep()
    return not problems


def _make_settings(upstream: str) -> Settings:
    """On free ports, in memory. The page shows money."""
    settings = load_settings(None, {}, upstream=upstream, port=0, admin_port=0)
    return replace(
        settings,
        store="memory:",
        models=(*settings.models, ModelRule(match=MODEL, price=_PRICE)),
        model_origins=(*settings.model_origins, "the demo"),
    )


async def _play_through(
    gateway: Gateway, model: StandIn, write: WriteText, pause_seconds: float
) -> list[TurnReport]:
    turns: list[TurnReport] = []
    async for turn in play(f"http://127.0.0.1:{gateway.port}/v1"):
        turns.append(turn)
        messages, tokens = model.last_prompt
        plan = turn.headers.get(X_GATEWAY_PLAN, "") if turn.status == 200 else f"status {turn.status}"
        sent = f"{len(turns):4}  {turn.messages:8}  {turn.tokens:6,}"
        bar = draw_bar(tokens, WINDOW_TOKENS, _BAR_COLUMNS)
        write(f"{sent}  {messages:8}  {tokens:6,}  {plan:14}  {bar}")
        while not gateway.is_idle:  # noqa: ASYNC110 - the gateway has no event for it, as nothing waits for it
            await asyncio.sleep(_LOOK_SECONDS)
        await asyncio.sleep(pause_seconds)
    return turns


def _compare(through: Sequence[TurnReport], direct: Sequence[TurnReport]) -> Iterator[str]:
    found = FILES - len(find_missing(through[-1].text))
    plans = [turn.headers.get(X_GATEWAY_PLAN) for turn in through]
    first = next((number for number, plan in enumerate(plans, 1) if plan in _PLANS_WITH_SUMMARY), None)
    if first is not None:
        yield f"\nFrom turn {first} on, the model got a summary in place of the old turns."
    yield f"With the gateway the agent got its answer in turn {len(through)}: {found} of {FILES} findings."
    last = direct[-1]
    if last.status == 200:
        return
    yield (
        f"Without it, the agent was refused in turn {len(direct)}, at {last.messages} messages, "
        f"{last.tokens:,} tokens:"
    )
    yield f"  {last.status} {last.text}"


def _read_saved(settings: Settings, admin_port: int) -> str:
    """What it would have cost until it ended, beside what it did cost."""
    admin = replace(settings.admin, port=admin_port)
    with AdminClient(replace(settings, admin=admin)) as client:
        (tenant,) = client.get("/totals", TotalsPage, {}).tenants
    price = f"at ${_PRICE.input:g} and ${_PRICE.output:g} for a million tokens in and out"
    return f"{describe_saved(tenant.economics)} ({price})."


def find_problems(through: Sequence[TurnReport], direct: Sequence[TurnReport]) -> list[str]:
    """What differs from what the demo promises."""
    plans = {turn.headers.get(X_GATEWAY_PLAN) for turn in through}
    checks = (
        (through[-1].status == 200, f"a request was refused: {through[-1].text}"),
        (not plans.isdisjoint(_PLANS_WITH_SUMMARY), "no summary was used"),
        (not find_missing(through[-1].text), "the answer lacks findings"),
        (direct[-1].status == 400, "without the gateway nothing was refused"),
    )
    return [problem for is_good, problem in checks if not is_good]


def _wrap(text: str) -> str:
    """In lines of a terminal of 80 columns. What follows the first line of a paragraph is indented."""
    lines = ((line, " " * (len(line) - len(line.lstrip()) + 2)) for line in text.split("\n"))
    wrap = partial(textwrap.fill, width=_COLUMNS - 1, break_long_words=False)
    return "\n".join(wrap(line, subsequent_indent=indent) for line, indent in lines)


@contextmanager
def _showing_log(write: WriteText) -> Iterator[None]:
    """Writes what the gateway logs about compactions."""
    logger, handler = logging.getLogger(_COMPACTOR), _Writing(write)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _Writing(logging.Handler):
    def __init__(self, write: WriteText) -> None:
        super().__init__()
        self._write = write
        self.setFormatter(logging.Formatter("      log: %(levelname)s %(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self._write(_wrap(self.format(record)))
