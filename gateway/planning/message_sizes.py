"""Raw token counts of messages. Each message is counted once; large ones in a thread.

Texts are counted by a tokenizer or by their length. Both are estimates; `learning` calibrates them by the
usage that upstreams return. Far below the thresholds no plan needs these counts. The o200k_base ranks are
packed in the package, because tiktoken's own loader downloads them at run time, which fails offline; they
take 70 MB of memory, so that a process loads them when it first counts, and not at start.
"""

import asyncio
import lzma
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.resources import files
from itertools import accumulate, chain, pairwise
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from gateway.bounds.lanes import Lanes, Steps, take_all_steps
from gateway.conversations.reading import Received
from gateway.core.history.transcript import TranscriptEntry, list_entries
from gateway.core.history.view import CLEARED_TOKENS, FRAME_TOKENS, Size
from gateway.core.policy import Estimator
from gateway.core.sizing.estimate import Sizes
from gateway.lru import Lru
from gateway.wire.body import parse_value
from gateway.wire.canonical import flatten_content

if TYPE_CHECKING:
    import tiktoken

TextCounter = Callable[[str], int]

# From tiktoken_ext/openai_public.py (MIT, see data/NOTICE.md).
_PATTERN = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
_RANKS = 199_998

# tiktoken 0.14 panics (a BaseException) on a million spaces, because its regex gives up.
_SLICE_CHARACTERS = 65_536


class Tokenizer:
    """Safe to use from many threads, but for `load`. All of a process share the ranks."""

    def __init__(self) -> None:
        self.is_loaded = False
        self._loading: asyncio.Task[tiktoken.Encoding] | None = None

    async def load(self) -> None:
        """Before the first count on the event loop: 200 ms of CPU in a thread, once however many wait for it.

        Returns without suspending once it is loaded. Raises what the load raises; the next call tries again.
        """
        if not self.is_loaded:
            if self._loading is None or self._loading.done():
                # The one before has failed, for want of memory or of file descriptors.
                self._loading = asyncio.create_task(asyncio.to_thread(_load_encoding))
            # One that waits may be cancelled, and the others go on waiting.
            await asyncio.shield(self._loading)
            self.is_loaded = True

    def count(self, text: str) -> int:
        """Counts any string, lone surrogates included. Takes 0.3 s per million tokens, without the GIL."""
        encoding = _load_encoding()
        starts = range(0, len(text), _SLICE_CHARACTERS)
        parts = (text[start : start + _SLICE_CHARACTERS] for start in starts)
        return sum(len(encoding.encode_ordinary(part)) for part in parts)


def make_counters(tokenizer: Tokenizer) -> Mapping[Estimator, TextCounter]:
    return {"tiktoken": tokenizer.count, "chars": count_by_length, "chars-up": count_by_length_up}


def count_by_length(text: str) -> int:
    """`Math.round(length / 4)` of JavaScript, which rounds a half up (docs/sources.md, 000 and 001)."""
    return (len(text) + 2) // 4


def count_by_length_up(text: str) -> int:
    """`ceil(length / 4)` (docs/sources.md, 004)."""
    return (len(text) + 3) // 4


@cache
def _load_encoding() -> "tiktoken.Encoding":
    import tiktoken

    return tiktoken.Encoding("o200k_base", pat_str=_PATTERN, mergeable_ranks=_load_ranks(), special_tokens={})


def _load_ranks() -> dict[bytes, int]:
    """Packed by scripts/pack_ranks.py: one length byte per rank, then the tokens, both in order."""
    packed = files("gateway").joinpath("data/o200k_base.tiktoken.xz").read_bytes()
    data = lzma.decompress(packed)
    ends = accumulate(data[:_RANKS], initial=_RANKS)
    return {data[start:end]: rank for rank, (start, end) in enumerate(pairwise(ends))}


# Counting more than this takes milliseconds, which would hold up other requests on the event loop.
_INLINE_BYTES: Final = 8 * 1024
# Looking up so many messages takes a few milliseconds. Then other requests have their turn.
_GROUP_MESSAGES: Final = 1_000
# A text is counted in pieces, and other work may run between them: the tokenizer takes 2 ms for a piece of
# prose, and 40 ms for one of the worst kind. A multiple of four, so that counts by length are the same.
_PIECE_CHARACTERS: Final = 65_536
# Of a longer text so many pieces are counted, evenly spread, and stand for the rest. They are a million
# tokens of prose, which fill the largest windows.
_MAX_PIECES: Final = 64
# A message with more values than this is counted as JSON. The parser makes a Python object for each, up to
# 100 ms for these, while no other thread can run.
_MAX_VALUES: Final = 200_000
# A call costs its name, brackets and a frame for its result: about 10 tokens at OpenAI, and 60 to 90 for
# Claude in the recorded sessions.
_CALL_TOKENS: Final = 30
_WEIGHT_BYTES: Final = 200
# Of a message that the client no longer sends.
_NOTHING: Final = Size(0, 0)

T = TypeVar("T")


class _Part(NamedTuple):
    """A part of a request body, and how it is measured."""

    raw: bytes
    measure: Callable[[TextCounter, bytes], Steps[Size]]


class Sizer:
    """counters: count the raw tokens of a text by each estimator; called from a thread, too.

    tokenizer: the one of these counters that has to be loaded before it counts, if there is one.
    """

    def __init__(
        self,
        counters: Mapping[Estimator, TextCounter],
        max_bytes: int,
        lanes: Lanes,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self._counters = counters
        self._tokenizer = tokenizer
        self._known: Lru[tuple[Estimator, bytes], Size] = Lru(max_bytes)
        self._lanes = lanes

    def is_ready(self, estimator: Estimator) -> bool:
        """Whether a count takes no more memory than its result."""
        return estimator != "tiktoken" or self._tokenizer is None or self._tokenizer.is_loaded

    async def measure(self, received: Received, estimator: Estimator) -> Sizes:
        """Sizes of the messages one by one, and of the leading block and the tools together."""
        conversation = received.conversation
        keys = [message.key for message in (*conversation.leading, *conversation.received)]
        sizes: list[Size] = []
        for start in range(0, len(keys), _GROUP_MESSAGES):
            if start:
                await asyncio.sleep(0)
            group = keys[start : start + _GROUP_MESSAGES]
            read = partial(_read_message, received, start)
            sizes += await self._measure_parts(received.owner, estimator, group, read)
        begin = len(conversation.leading)
        environment = sum(size.tokens for size in sizes[:begin])
        others = _read_environment(received)
        read_other = list(others.values()).__getitem__
        measured = await self._measure_parts(received.owner, estimator, list(others), read_other)
        environment += sum(size.tokens for size in measured)
        messages = sizes[begin:]
        if conversation.trim is not None:
            known_sizes = dict(zip(conversation.trim.positions, messages, strict=True))
            messages = [known_sizes.get(at, _NOTHING) for at in range(len(conversation.messages))]
        return Sizes(messages=messages, environment=environment)

    def measure_message(self, received: Received, position: int, estimator: Estimator) -> Size:
        """The size of one message that was received, counted at once."""
        message = received.conversation.messages[position]
        size = self._known.get((estimator, message.key))
        if size is None:
            parse_entry, raw = received.format.parse_entry, received.raw(position)
            size = take_all_steps(measure_message(parse_entry, self._counters[estimator], raw))
            self._known.put((estimator, message.key), size, _WEIGHT_BYTES)
        return size

    async def count(self, owner: str, text: str, estimator: Estimator) -> int:
        """Raw tokens of one text of this tenant."""
        return await self._run(owner, len(text), _count(await self._load_counter(estimator), text))

    async def _load_counter(self, estimator: Estimator) -> TextCounter:
        if self._tokenizer is not None and not self.is_ready(estimator):
            await self._tokenizer.load()
        return self._counters[estimator]

    async def _measure_parts(
        self, owner: str, estimator: Estimator, keys: Sequence[bytes], read: Callable[[int], _Part]
    ) -> list[Size]:
        """The sizes of parts with these keys, which are the same in every request.

        read: gives a part by its position, if it has to be counted.
        """
        # Taken out of the cache at once: while the rest is counted, other requests may evict them.
        found = {key: self._known.get((estimator, key)) for key in keys}
        sizes = {key: size for key, size in found.items() if size is not None}
        unknown = {key: at for at, key in enumerate(keys) if key not in sizes}
        if unknown:
            parts = [read(at) for at in unknown.values()]
            size_bytes = sum(len(part.raw) for part in parts)
            steps = _measure_all(await self._load_counter(estimator), parts)
            for key, size in zip(unknown, await self._run(owner, size_bytes, steps), strict=True):
                self._known.put((estimator, key), size, _WEIGHT_BYTES)
                sizes[key] = size
        return [sizes[key] for key in keys]

    async def _run(self, owner: str, size_bytes: int, steps: Steps[T]) -> T:
        if size_bytes < _INLINE_BYTES:
            return take_all_steps(steps)
        return await self._lanes.run_steps(owner, size_bytes, steps)


def measure_message(
    parse_entry: Callable[[bytes], TranscriptEntry], counter: TextCounter, raw: bytes
) -> Steps[Size]:
    """The size of one message: its words, its frame, and flat figures for what is not text.

    If it has tool results, marks can clear only those: other texts are kept, and a placeholder for each
    result but one, which `shown_tokens` counts.
    """
    if _has_many_values(raw):
        return (yield from _measure_json(counter, raw))
    entries = list_entries((parse_entry(raw),))
    tokens: list[int] = []
    for entry in entries:
        tokens += ((yield from _count_entry(counter, entry)),)
    results = [len(entry.text) for entry in entries if entry.is_result]
    kept = CLEARED_TOKENS * max(0, len(results) - 1)
    if results:
        kept += sum(size for size, entry in zip(tokens, entries, strict=True) if not entry.is_result)
    total = FRAME_TOKENS + sum(tokens)
    media = sum(entry.media for entry in entries)
    return Size(total, max(results, default=len(entries[0].text)), media, min(kept, total))


def _read_message(received: Received, start: int, at: int) -> _Part:
    """start + at: its place among the leading messages and those of the conversation together."""
    return _Part(received.body.raw(start + at), partial(measure_message, received.format.parse_entry))


def _read_environment(received: Received) -> dict[bytes, _Part]:
    """The tools, and a system prompt that is not a message, by the keys of their contents."""
    body, envelope = received.body, received.body.envelope
    parts = {}
    if envelope.tools:
        parts[envelope.tools] = _Part(body.field(envelope.tools_slice), _measure_json)
    if envelope.system:
        parts[envelope.system] = _Part(body.field(envelope.system_slice), _measure_system)
    return parts


def _measure_all(counter: TextCounter, parts: Sequence[_Part]) -> Steps[list[Size]]:
    sizes: list[Size] = []
    for part in parts:
        sizes += ((yield from part.measure(counter, part.raw)),)
        yield
    return sizes


def _measure_json(counter: TextCounter, raw: bytes) -> Steps[Size]:
    text = raw.decode("utf-8", "replace")
    tokens = yield from _count(counter, text)
    return Size(tokens, len(text))


def _measure_system(counter: TextCounter, raw: bytes) -> Steps[Size]:
    """A system prompt was not parsed before; one that cannot be parsed is counted as JSON."""
    text = raw.decode("utf-8", "replace")
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = "\n".join(flatten_content(parse_value(raw)).texts) if not _has_many_values(raw) else text
    tokens = yield from _count(counter, text)
    return Size(FRAME_TOKENS + tokens, len(text))


def _has_many_values(raw: bytes) -> bool:
    """By the signs before values, those inside texts included: only megabytes of text have so many."""
    if len(raw) < _MAX_VALUES:
        return False
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{") > _MAX_VALUES


def _count_entry(counter: TextCounter, entry: TranscriptEntry) -> Steps[int]:
    tokens = entry.media_tokens
    for text in (entry.text, entry.hidden, *chain.from_iterable(entry.calls)):
        if text:
            tokens += yield from _count(counter, text)
    return tokens + _CALL_TOKENS * len(entry.calls)


def _count(counter: TextCounter, text: str) -> Steps[int]:
    """Raw tokens of a text. The same text always has the same count."""
    if len(text) <= _PIECE_CHARACTERS:
        return counter(text)
    starts = range(0, len(text), _PIECE_CHARACTERS)
    tokens = counted = 0
    for start in starts[:: ceil(len(starts) / _MAX_PIECES)]:
        piece = text[start : start + _PIECE_CHARACTERS]
        tokens += counter(piece)
        counted += len(piece)
        yield
    return tokens * len(text) // counted
