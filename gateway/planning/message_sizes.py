"""Raw token counts of messages. Each message is counted once; large ones in a thread.

Far below the thresholds no plan needs these counts.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

import msgspec

from gateway.conversations.recognizer import Received
from gateway.core.history.transcript import TranscriptEntry, list_entries
from gateway.core.history.view import CLEARED_TOKENS, FRAME_TOKENS, Size
from gateway.core.policy import Estimator
from gateway.core.sizing.estimate import Sizes
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.wire.body import parse_value
from gateway.wire.canonical import flatten_content

# Counting more than this takes milliseconds, which would hold up other requests on the event loop.
_INLINE_BYTES: Final = 8 * 1024
# A call costs its name, brackets and a frame for its result: about 10 tokens at OpenAI, and 60 to 90 for
# Claude in the recorded sessions.
_CALL_TOKENS: Final = 30
_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 250

TextCounter = Callable[[str], int]


class _Part(NamedTuple):
    """A part of a request body. key: of its content, the same in every request."""

    key: bytes
    raw: bytes
    measure: Callable[[TextCounter, bytes], Size]


class Sizer:
    """counters: count the raw tokens of a text by each estimator; called from a thread, too."""

    def __init__(self, counters: Mapping[Estimator, TextCounter], max_bytes: int) -> None:
        self._counters = counters
        self._known: Lru[tuple[Estimator, bytes], Size] = Lru(max_bytes)
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="count")

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    async def measure(self, received: Received, estimator: Estimator) -> Sizes:
        """Sizes of the messages one by one, and of the leading block and the tools together."""
        conversation = received.conversation
        envelope = received.body.envelope
        keys = [message.key for message in (*conversation.leading, *conversation.messages)]
        keys += filter(None, (envelope.tools, envelope.system))
        # Known sizes are taken out first: while the rest is counted, other requests may evict them.
        known = {key: self._known.get((estimator, key)) for key in keys}
        sizes = {key: size for key, size in known.items() if size is not None}
        sizes |= await self._count_parts(_list_unknown(received, sizes), estimator)
        counted = [sizes[key] for key in keys]
        start = len(conversation.leading)
        end = start + len(conversation.messages)
        environment = sum(size.tokens for size in counted[:start] + counted[end:])
        return Sizes(messages=counted[start:end], environment=environment)

    async def count(self, text: str, estimator: Estimator) -> int:
        """Raw tokens of one text."""
        counter = self._counters[estimator]
        if len(text) < _INLINE_BYTES:
            return counter(text)
        return await asyncio.get_running_loop().run_in_executor(self._threads, counter, text)

    async def _count_parts(self, parts: Sequence[_Part], estimator: Estimator) -> dict[bytes, Size]:
        counter = self._counters[estimator]
        if sum(len(part.raw) for part in parts) < _INLINE_BYTES:
            sizes = _measure_parts(counter, parts)
        else:
            loop = asyncio.get_running_loop()
            sizes = await loop.run_in_executor(self._threads, _measure_parts, counter, parts)
        for key, size in sizes.items():
            self._known.put((estimator, key), size, _WEIGHT_BYTES)
        return sizes


def measure_message(
    parse_entry: Callable[[bytes], TranscriptEntry], counter: TextCounter, raw: bytes
) -> Size:
    """The size of one message: its words, its frame, and flat figures for what is not text.

    If it has tool results, marks can clear only those: other texts are kept, and a placeholder for each
    result but one, which `shown_tokens` counts.
    """
    entries = list_entries((parse_entry(raw),))
    tokens = [_count_entry(counter, entry) for entry in entries]
    results = [len(entry.text) for entry in entries if entry.is_result]
    kept = CLEARED_TOKENS * max(0, len(results) - 1)
    if results:
        kept += sum(size for size, entry in zip(tokens, entries, strict=True) if not entry.is_result)
    total = FRAME_TOKENS + sum(tokens)
    media = sum(entry.media for entry in entries)
    return Size(total, max(results, default=len(entries[0].text)), media, min(kept, total))


def _list_unknown(received: Received, known: Collection[bytes]) -> list[_Part]:
    """Of everything that the model reads, what is not known by its key."""
    body, conversation, envelope = received.body, received.conversation, received.body.envelope
    measure = partial(measure_message, received.format.parse_entry)
    parts = [
        _Part(message.key, body.raw(index), measure)
        for index, message in enumerate((*conversation.leading, *conversation.messages))
        if message.key not in known
    ]
    if envelope.tools and envelope.tools not in known:
        parts.append(_Part(envelope.tools, body.field(envelope.tools_slice), _measure_tools))
    if envelope.system and envelope.system not in known:
        parts.append(_Part(envelope.system, body.field(envelope.system_slice), _measure_system))
    return parts


def _measure_parts(counter: TextCounter, parts: Sequence[_Part]) -> dict[bytes, Size]:
    return {part.key: part.measure(counter, part.raw) for part in parts}


def _measure_tools(counter: TextCounter, raw: bytes) -> Size:
    text = raw.decode("utf-8", "replace")
    return Size(counter(text), len(text))


def _measure_system(counter: TextCounter, raw: bytes) -> Size:
    """A system prompt was not parsed before; one that cannot be parsed is counted as JSON."""
    try:
        text = "\n".join(flatten_content(parse_value(raw)).texts)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = raw.decode("utf-8", "replace")
    return Size(FRAME_TOKENS + counter(text), len(text))


def _count_entry(counter: TextCounter, entry: TranscriptEntry) -> int:
    tokens = counter(entry.text) + entry.media_tokens
    if entry.hidden:
        tokens += counter(entry.hidden)
    return tokens + sum(_CALL_TOKENS + counter(tool) + counter(arguments) for tool, arguments in entry.calls)
