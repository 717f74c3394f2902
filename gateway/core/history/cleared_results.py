"""How a prefix is known again after its client has cleared old tool results itself.

A second chain leaves the contents of results out. Beside each pivot stand the digests of the results that it
covers: a prefix on that chain is the same one if every result that differs is now exactly a placeholder.
Knows no wire format. A miss costs a summary; a wrong match poisons a session (DESIGN §3).
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Final

from gateway.core.history.conversation import Conversation
from gateway.core.history.message import fingerprint_fields
from gateway.core.history.pivot import Pivot

# What clients write in place of a result that they clear. Read in their sources; never a guess.
PLACEHOLDERS: Final = (
    # opencode (session/message-v2.ts; document 000 §5), and Qwen Code (microcompaction/microcompact.ts).
    "[Old tool result content cleared]",
    # LangChain: default of ClearToolUsesEdit (agents/middleware/context_editing.py).
    "[cleared]",
    # The plugin opencode-dynamic-context-pruning (lib/messages/prune.ts).
    "[Output removed to save context - information superseded or no longer needed]",
)
_DIGEST_BYTES: Final = 32
# A record of 128 KB; a pivot that covers more results is not found again once they are cleared.
_MOST_RESULTS: Final = 2_000
# Prefixes of one tenant that differ in nothing but results: beyond this nobody tells them apart.
_MOST_OUTLINES: Final = 4
# Bytes of JSON to a token, for a figure that is shown and decides nothing.
_ROUGH_BYTES_PER_TOKEN: Final = 3.5


@dataclass(frozen=True, slots=True)
class SplitFingerprint:
    """One message. frame: digest of all but its results' contents. results: a digest of each content."""

    frame: bytes
    results: tuple[bytes, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultHashes:
    """The results that a pivot covers. results: SHA-256 of each in hex, one behind the other.

    A short hash would hand the summary of one prefix to another. conversation: the branch it was made in.
    """

    pivot: str
    conversation: str
    results: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultHashesRecord:
    """All of one place. key: the skeleton chain at `covers`, hex. is_crowded: there were too many."""

    owner: str
    key: str
    covers: int
    outlines: tuple[ResultHashes, ...] = ()
    is_crowded: bool = False


def fingerprint_result(text: str, parts: Sequence[bytes] = ()) -> bytes:
    """Of all that a result holds: its texts as one, and the canonical form of every other part."""
    fields = [(b"text", text.encode("utf-8", "surrogatepass")), *((b"part", part) for part in parts)]
    return fingerprint_fields(fields)


@lru_cache(maxsize=64)
def find_placeholders(placeholder: str) -> frozenset[bytes]:
    """Digests of results that are nothing but a placeholder: a known one, or the policy's own."""
    return frozenset(fingerprint_result(text) for text in (*PLACEHOLDERS, placeholder) if text)


def chain_frames(conversation: Conversation, fingerprints: Iterable[SplitFingerprint]) -> list[bytes]:
    """One link more than there are skeletons; the first names tenant and format, as every chain's does."""
    root = hashlib.sha256(b"skeleton:" + conversation.chain[0]).digest()
    frames = (skeleton.frame for skeleton in fingerprints)
    return list(accumulate(frames, lambda link, frame: hashlib.sha256(link + frame).digest(), initial=root))


def has_cleared(fingerprints: Sequence[SplitFingerprint], cleared: frozenset[bytes]) -> bool:
    """Is any of the results a placeholder now?"""
    return not cleared.isdisjoint(_list_results(fingerprints))


def make_result_hashes(
    pivot: Pivot, conversation: str, fingerprints: Sequence[SplitFingerprint]
) -> ResultHashes | None:
    """skeletons: of exactly the messages that the pivot covers. None: no results, or too many."""
    results = _list_results(fingerprints)
    if not 0 < len(results) <= _MOST_RESULTS:
        return None
    return ResultHashes(pivot=pivot.key, conversation=conversation, results=b"".join(results).hex())


def with_result_hashes(
    known: ResultHashesRecord, added: ResultHashes, cleared: frozenset[bytes]
) -> ResultHashesRecord:
    """The newest in place of its pivot's earlier one, and of those that it is only a cleared form of."""
    if known.is_crowded:
        return known
    results = _split_results(added)
    others = [
        other
        for other in known.outlines
        if other.pivot != added.pivot and not _is_cleared_form(_split_results(other), results, cleared)
    ]
    if len(others) == _MOST_OUTLINES:
        return replace(known, outlines=(), is_crowded=True)
    return replace(known, outlines=(*others, added))


def find_result_hashes(
    known: ResultHashesRecord, fingerprints: Sequence[SplitFingerprint], cleared: frozenset[bytes]
) -> ResultHashes | None:
    """The only one that these messages may be a cleared form of; where two are left, there is none."""
    results = _list_results(fingerprints)
    found = [
        outline for outline in known.outlines if _is_cleared_form(_split_results(outline), results, cleared)
    ]
    return found[0] if len(found) == 1 else None


def rekey(pivot: Pivot, conversation: Conversation) -> Pivot:
    """The same summary under the key of the conversation that it has been found to stand for, too; the same
    pivot where that is its key.
    """
    key = conversation.chain[pivot.covers].hex()
    if key == pivot.key:
        return pivot
    covered = conversation.messages[pivot.opening_end : pivot.covers]
    left_tokens = int(sum(message.size_bytes for message in covered) / _ROUGH_BYTES_PER_TOKEN)
    saved_tokens = min(pivot.saved_tokens, left_tokens)
    return replace(pivot, key=key, saved_tokens=saved_tokens)


def _is_cleared_form(before: Sequence[bytes], now: Sequence[bytes], cleared: frozenset[bytes]) -> bool:
    return len(before) == len(now) and all(
        new == old or new in cleared for old, new in zip(before, now, strict=True)
    )


def _list_results(fingerprints: Sequence[SplitFingerprint]) -> list[bytes]:
    return [result for skeleton in fingerprints for result in skeleton.results]


def _split_results(outline: ResultHashes) -> list[bytes]:
    results = bytes.fromhex(outline.results)
    return [results[at : at + _DIGEST_BYTES] for at in range(0, len(results), _DIGEST_BYTES)]
