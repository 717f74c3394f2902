"""A session that edits files, played turn by turn through a gateway."""

from collections.abc import Sequence
from typing import Final

import aiohttp

from tests.builders.chat import JSON
from tests.builders.sessions import ask, call, edit
from tests.toy.gateway import RunningGateway

TASK: Final = "Fix the parser of dates"
SESSION: Final[Sequence[JSON]] = (
    ask(TASK),
    *edit(1, "/a.py", "one\n", "two\nthree\n"),
    *call(2, "bash", {"command": "make test"}, "ok"),
    *edit(3, "/b.py", "x\n", "y\n"),
    *edit(4, "/a.py", "two\n", "2\n"),
)
_TOOLS: Final = [{"type": "function", "function": {"name": "edit", "parameters": {"type": "object"}}}]


async def play(
    gateway: RunningGateway,
    messages: Sequence[JSON],
    *,
    key: str = "sk-toy",
    headers: dict[str, str] | None = None,
    first: int = 0,
) -> str:
    """Sends a request at the end of each user message and result, from the position `first` on. Returns the
    id of the conversation, once everything about it is written.
    """
    sent = {"Authorization": f"Bearer {key}", **(headers or {})}
    identity = ""
    async with aiohttp.ClientSession(headers=sent) as client:
        for end, message in enumerate(messages, 1):
            if end <= first or message["role"] == "assistant":
                continue
            body = {"model": "toy-model", "messages": list(messages[:end]), "tools": _TOOLS}
            async with client.post(f"{gateway.base_url}/chat/completions", json=body) as response:
                assert response.status == 200, await response.read()
                await response.read()
                identity = response.headers["x-gateway-conversation"]
    await gateway.settle()
    return identity
