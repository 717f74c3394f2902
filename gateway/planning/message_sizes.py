"""Raw token counts of messages, each counted once, large ones off the event loop.

Counts only when somebody asks: far below the lines nobody does.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from gateway.conversations.recognizer import Received
from gateway.core.history.transcript import TranscriptEntry, list_entries
from gateway.core.history.view import CLEARED_TOKENS, FRAME_TOKENS, Size
from gateway.core.policy import Estimator
from gateway.core.sizing.estimate import Sizes
from gateway.lru import Lru
from gateway.wire.body import Slice, parse_value
from gateway.wire.canonical import flatten_content
from gateway.wire.request import RequestBody

# FACTS §1: above this a count belongs in a thread.
_INLINE_BYTES = 8 * 1024
# Name and brackets of one call, and the frame of its result. OpenAI takes about 10; on the recorded sessions
# Claude takes 60 to 90.
_CALL_TOKENS = 30
_WEIGHT_BYTES = 200

TextCounter = Callable[[str], int]
Measure = Callable[[TextCounter, bytes], Size]
Work = list[tuple[bytes, bytes, Measure]]


class Sizer:
    """`counts`: raw tokens of a text by each estimator; safe to call from a thread."""

    def __init__(self, counts: Mapping[Estimator, TextCounter], max_bytes: int) -> None:
        self._counts = counts
        self._known: Lru[tuple[Estimator, bytes], Size] = Lru(max_bytes)
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="count")

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    async def measure(self, received: Received, estimator: Estimator) -> Sizes:
        """Sizes of every message, of the leading block and the tools."""
        body, conversation = received.body, received.conversation
        everything = [*conversation.leading, *conversation.messages]
        measure = partial(measure_message, received.form.parse_entry)
        around = _list_around(body)
        keys = [message.key for message in everything] + [key for key, _, _ in around]
        # Taken out now: while the rest is counted, others may push it out of memory.
        sizes = {key: self._known.get((estimator, key)) for key in keys}
        work: Work = [
            (message.key, body.raw(index), measure)
            for index, message in enumerate(everything)
            if sizes[message.key] is None
        ]
        work += [(key, body.field(place), measure) for key, place, measure in around if sizes[key] is None]
        known = {key: size for key, size in sizes.items() if size is not None}
        known |= await self._measure_work(work, estimator)
        counted = [known[key] for key in keys]
        leading, end = len(conversation.leading), len(everything)
        environment = sum(size.tokens for size in counted[:leading] + counted[end:])
        return Sizes(messages=counted[leading:end], environment=environment)

    async def count(self, text: str, estimator: Estimator) -> int:
        count = self._counts[estimator]
        if len(text) < _INLINE_BYTES:
            return count(text)
        return await asyncio.get_running_loop().run_in_executor(self._threads, count, text)

    async def _measure_work(self, work: Work, estimator: Estimator) -> dict[bytes, Size]:
        count = self._counts[estimator]
        if sum(len(raw) for _, raw, _ in work) < _INLINE_BYTES:
            fresh = _measure_all(count, work)
        else:
            loop = asyncio.get_running_loop()
            fresh = await loop.run_in_executor(self._threads, _measure_all, count, work)
        for key, size in fresh.items():
            self._known.put((estimator, key), size, _WEIGHT_BYTES)
        return fresh


def _list_around(body: RequestBody) -> list[tuple[bytes, Slice | None, Measure]]:
    """What stands around the messages and is read by the model: where, and how it is measured."""
    envelope = body.envelope
    found = [
        (envelope.tools, envelope.tools_slice, _measure_tools),
        (envelope.system, envelope.system_slice, _measure_preamble),
    ]
    return [entry for entry in found if entry[0]]


def _measure_all(count: TextCounter, work: Work) -> dict[bytes, Size]:
    return {key: measure(count, raw) for key, raw, measure in work}


def _measure_tools(count: TextCounter, raw: bytes) -> Size:
    text = raw.decode("utf-8", "replace")
    return Size(count(text), len(text))


def _measure_preamble(count: TextCounter, raw: bytes) -> Size:
    """Nothing says that it can be read."""
    try:
        text = "\n".join(flatten_content(parse_value(raw))[0])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = raw.decode("utf-8", "replace")
    return Size(FRAME_TOKENS + count(text), len(text))


def measure_message(parse_entry: Callable[[bytes], TranscriptEntry], count: TextCounter, raw: bytes) -> Size:
    """Raw tokens of one message: its words, its frame, and flat figures for what is not text.

    Beside results marks leave alone what else is said, and they leave something of each result.
    """
    entries = list_entries((parse_entry(raw),))
    tokens = [_count_entry(count, entry) for entry in entries]
    results = [len(entry.text) for entry in entries if entry.is_result]
    kept = CLEARED_TOKENS * max(0, len(results) - 1)
    if results:
        kept += sum(size for size, entry in zip(tokens, entries, strict=True) if not entry.is_result)
    total = FRAME_TOKENS + sum(tokens)
    media = sum(entry.media for entry in entries)
    return Size(total, max(results, default=len(entries[0].text)), media, min(kept, total))


def _count_entry(count: TextCounter, entry: TranscriptEntry) -> int:
    tokens = count(entry.text) + entry.media_tokens
    if entry.hidden:
        tokens += count(entry.hidden)
    return tokens + sum(_CALL_TOKENS + count(tool) + count(arguments) for tool, arguments in entry.calls)
