"""Raw token counts of messages, each counted once, large ones off the event loop.

Counts only when somebody asks: far below the lines nobody does.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gateway.core.estimate import Sizes
from gateway.core.view import Size
from gateway.identity import Received
from gateway.lru import Lru
from gateway.wire.chat_text import read_spoken

# FACTS §1: above this a count belongs in a thread.
_INLINE_BYTES = 8 * 1024
# Role and separators of one message, name and brackets of one call, one image or file.
_MESSAGE_TOKENS = 4
_CALL_TOKENS = 8
_MEDIA_TOKENS = 800
_WEIGHT_BYTES = 200

Work = list[tuple[bytes, bytes]]


class Sizer:
    """`count`: raw tokens of a text; safe to call from a thread."""

    def __init__(self, count: Callable[[str], int], max_bytes: int) -> None:
        self._count = count
        self._known: Lru[bytes, Size] = Lru(max_bytes)
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="count")

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    async def measure(self, received: Received) -> Sizes:
        """Sizes of every message, of the leading block and the tools."""
        body, conversation = received.body, received.conversation
        everything = [*conversation.leading, *conversation.messages]
        # Taken out now: while the rest is counted, others may push it out of memory.
        sizes = {message.key: self._known.get(message.key) for message in everything}
        work = [
            (message.key, body.raw(index))
            for index, message in enumerate(everything)
            if sizes[message.key] is None
        ]
        tools = body.envelope.tools
        if tools:
            sizes[tools] = self._known.get(tools)
            if sizes[tools] is None:
                work.append((tools, body.field(body.envelope.tools_slice)))
        known = {key: size for key, size in sizes.items() if size is not None}
        known |= await self._measure_work(work, tools)
        counted = [known[message.key] for message in everything]
        leading = len(conversation.leading)
        environment = sum(size.tokens for size in counted[:leading])
        environment += known[tools].tokens if tools else 0
        return Sizes(messages=counted[leading:], environment=environment)

    async def count(self, text: str) -> int:
        if len(text) < _INLINE_BYTES:
            return self._count(text)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._count, text)

    async def _measure_work(self, work: Work, tools: bytes) -> dict[bytes, Size]:
        if sum(len(raw) for _, raw in work) < _INLINE_BYTES:
            fresh = self._measure_all(work, tools)
        else:
            loop = asyncio.get_running_loop()
            fresh = await loop.run_in_executor(self._threads, self._measure_all, work, tools)
        for key, size in fresh.items():
            self._known.put(key, size, _WEIGHT_BYTES)
        return fresh

    def _measure_all(self, work: Work, tools: bytes) -> dict[bytes, Size]:
        return {key: self._measure_tools(raw) if key == tools else self._measure(raw) for key, raw in work}

    def _measure_tools(self, raw: bytes) -> Size:
        text = raw.decode("utf-8", "replace")
        return Size(self._count(text), len(text))

    def _measure(self, raw: bytes) -> Size:
        spoken = read_spoken(raw)
        tokens = _MESSAGE_TOKENS + self._count(spoken.text) + _MEDIA_TOKENS * spoken.media
        if spoken.hidden:
            tokens += self._count(spoken.hidden)
        for tool, arguments in spoken.calls:
            tokens += _CALL_TOKENS + self._count(tool) + self._count(arguments)
        return Size(tokens, len(spoken.text))
