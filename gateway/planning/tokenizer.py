"""Counts the tokens of a text, by a tokenizer or by its length.

Both counts are estimates; `learning` calibrates them by the usage that upstreams return. The o200k_base ranks
are packed in the package, because tiktoken's own loader downloads them at run time, which fails offline.

They take 70 MB of memory, so that a process loads them when it first counts, and not at start.
"""

import asyncio
import lzma
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from gateway.core.policy import Estimator

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
