"""Hostile texts: each is sent as a user's, as a reply's and as a tool's, in a window that it more than fills.

So it is read, counted, digested, and searched for what the session did. Then the operator's list is asked.
"""

import asyncio
import base64
import json
import random
from collections.abc import Callable
from typing import Final

import aiohttp

from bench.hostile_cases import CASES, MEGABYTE, Attack, Case, Stage, posting, zip_members
from tests.toy.raw import Received, render_answer

_SIZE: Final = MEGABYTE
_CHAT: Final = "/v1/chat/completions"
_RESULT: Final = "[read_file for 'a.py'] Result:\n"
_WINDOW: Final = 100_000


def _repeat(unit: str, size: int = _SIZE) -> Callable[[], str]:
    return lambda: unit * (size // len(unit))


def _make_bytes() -> str:
    return base64.b64encode(random.Random(1).randbytes(_SIZE * 3 // 4)).decode()


def _make_paths() -> str:
    return "".join(f"/src/part_{at}/file_{at}.py:{at}: " for at in range(_SIZE // 30))


_TEXTS: Final[dict[str, Callable[[], str]]] = {
    "feedback": _repeat("<feedback>"),
    "feedback-lines": _repeat("<feedback>\n<user_message>\n"),
    "results": _repeat(_RESULT),
    "opened-results": _repeat("[read_file for '"),
    "opened-calls": _repeat("<read_file>\n<path>"),
    "blocks": _repeat("<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n"),
    "patches": _repeat("*** Begin Patch\n*** Update File: a\n@@\n-a\n+b\n"),
    "reminders": _repeat("<system-reminder>"),
    "fences": _repeat("```\n"),
    "paths": _make_paths,
    "slashes": _repeat("/a"),
    "cjk": _repeat("字"),
    "lines": _repeat("a\n"),
    "numbered": _repeat("     1→a\n"),
    "boxes": _repeat("- [ ] a\n"),
    "hunks": _repeat("--- a\n+++ b\n@@ -1 +1 @@\n"),
    "heredocs": _repeat("patch <<'A'\n"),
    "errors": _repeat("Error: no such file /a/b\n"),
    "links": _repeat("https://a.b/c?d=e#f "),
    "brackets": _repeat("[", _SIZE),
    "quotes": _repeat('\\"'),
    "digits": _repeat("9"),
    "spaces": _repeat(" "),
    "base64": _make_bytes,
}


def _answer(text: str) -> bytes:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 90_000, "completion_tokens": 10, "total_tokens": 90_010}
    document = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
    return render_answer(json.dumps(document).encode())


async def _answer_shortly(_: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(_answer("The task goes on: the parser is done and its tests pass; the printer comes next."))
    await writer.drain()


def _make_call(identity: str, tool: str, arguments: str) -> dict[str, object]:
    function = {"name": tool, "arguments": arguments}
    call = {"id": identity, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _make_turns(text: str) -> list[dict[str, object]]:
    edit = json.dumps({"path": "a.py", "old_string": text[: _SIZE // 4], "new_string": text[1 : _SIZE // 4]})
    return [
        {"role": "user", "content": f"Go on. {text}"},
        _make_call("c1", "read_file", '{"path":"a.py"}'),
        {"role": "tool", "tool_call_id": "c1", "content": text},
        _make_call("c2", "edit_file", edit),
        {"role": "tool", "tool_call_id": "c2", "content": f"ok {text}"},
        _make_call("c3", "bash", json.dumps({"command": text[: _SIZE // 2]})),
        {"role": "tool", "tool_call_id": "c3", "content": text},
        {"role": "assistant", "content": f"<read_file>\n<path>a.py</path>\n</read_file>\n{text}"},
        {"role": "user", "content": _RESULT + text},
    ]


def _make_written_calls() -> list[dict[str, object]]:
    """2,000 of them wait for one message of 100 KB."""
    call = "<read_file>\n<path>a.py</path>\n</read_file>\n"
    turns: list[dict[str, object]] = [{"role": "user", "content": "Go."}]
    turns += [{"role": "assistant", "content": call * 50} for _ in range(40)]
    return [*turns, {"role": "user", "content": _RESULT + "a\n" * 50_000}]


def _make_edits() -> list[dict[str, object]]:
    """Each of 250 edits turns 2,000 lines around."""
    lines = [f"{at}\n" for at in range(2_000)]
    old, new = "".join(lines), "".join(reversed(lines))
    edit = json.dumps({"path": "a.py", "old_string": old, "new_string": new})
    turns: list[dict[str, object]] = [{"role": "user", "content": "Go."}]
    for at in range(250):
        turns.append(_make_call(f"c{at}", "edit_file", edit))
        turns.append({"role": "tool", "tool_call_id": f"c{at}", "content": "ok"})
    return turns


async def time_list(stage: Stage) -> float:
    """Seconds."""
    clock = asyncio.get_running_loop().time
    started = clock()
    url = f"http://127.0.0.1:{stage.admin_port}/api/v1/conversations"
    async with aiohttp.ClientSession() as client, client.get(url) as response:
        await response.read()
    return clock() - started


def _sending(make_turns: Callable[[], list[dict[str, object]]]) -> Attack:
    async def attack(stage: Stage) -> str:
        stage.upstream.script = _answer_shortly
        turns = make_turns()
        longer = [*turns, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And now?"}]
        statuses, waits = [], []
        for messages in (turns, longer):
            body = json.dumps({"model": "m", "messages": messages}).encode()
            statuses.append(await stage.post(_CHAT, body))
            waits += [await time_list(stage) for _ in range(20)]
        return f"{' '.join(dict.fromkeys(statuses))}; slowest list {max(waits) * 1_000:.0f} ms"

    return attack


def _sending_text(make_text: Callable[[], str]) -> Attack:
    return _sending(lambda: _make_turns(make_text()))


ALL_CASES: Final[dict[str, Case]] = {
    **CASES,
    "members-large": Case(
        "a request of 2,000 gzip members of 30 KB",
        posting(_CHAT, lambda: zip_members(2_000, b" " * 30_000), (("Content-Encoding", "gzip"),)),
    ),
    "text-written-calls": Case("2,000 written calls wait for 100 KB", _sending(_make_written_calls)),
    "text-edits": Case("250 edits turn 2,000 lines around", _sending(_make_edits)),
    **{
        f"text-{name}": Case(f"1 MB of {name}", _sending_text(make_text), context=_WINDOW)
        for name, make_text in _TEXTS.items()
    },
}
