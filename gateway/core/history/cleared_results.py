"""Recognizes a known prefix after its client has cleared old tool results.

A second chain leaves out the contents of results. Next to each pivot the fingerprints of the results that it
covers are stored. A prefix on that chain is the same one if every result that differs is now exactly a
placeholder. Knows no wire format. A missed match costs a summary; a wrong one corrupts a session, so matches
are exact.
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

# What clients write in place of a result that they clear, as found in their sources.
PLACEHOLDERS: Final = (
    # opencode (session/message-v2.ts; 000 in docs/sources.md) and Qwen Code
    # (microcompaction/microcompact.ts).
    "[Old tool result content cleared]",
    # LangChain: the default of ClearToolUsesEdit (agents/middleware/context_editing.py).
    "[cleared]",
    # The plugin opencode-dynamic-context-pruning (lib/messages/prune.ts).
    "[Output removed to save context - information superseded or no longer needed]",
)
_FINGERPRINT_BYTES: Final = 32
# This makes a record of 128 KB. A pivot that covers more results is not found again once they are cleared.
_MAX_RESULTS: Final = 2_000
# More prefixes of one tenant that differ in results only cannot be told apart.
_MAX_CANDIDATES: Final = 4
# Used only for a number that is shown.
_ROUGH_BYTES_PER_TOKEN: Final = 3.5


@dataclass(frozen=True, slots=True)
class SplitFingerprint:
    """The fingerprint of one message in parts."""

    # Of everything but the contents of its results.
    frame: bytes
    # Of the content of each result.
    results: tuple[bytes, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultHashes:
    """The results that a pivot covers. Part of a record.

    The hashes are whole, because short ones could assign the summary of one prefix to another.
    """

    pivot: str
    # The branch in which the pivot was made.
    conversation: str
    # SHA-256 of each result in hex, joined.
    results: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultHashesRecord:
    """All known results at one place. A record."""

    owner: str
    # The chain without results at `covers`, in hex.
    key: str
    covers: int
    outlines: tuple[ResultHashes, ...] = ()
    # There were too many to tell apart.
    is_crowded: bool = False


def fingerprint_result(text: str, parts: Sequence[bytes] = ()) -> bytes:
    """The fingerprint of a whole result: its texts joined, and the canonical form of every other part."""
    fields = [(b"text", text.encode("utf-8", "surrogatepass")), *((b"part", part) for part in parts)]
    return fingerprint_fields(fields)


@lru_cache(maxsize=64)
def find_placeholders(placeholder: str) -> frozenset[bytes]:
    """The fingerprints of results that are only a placeholder: a known one, or the policy's."""
    return frozenset(fingerprint_result(text) for text in (*PLACEHOLDERS, placeholder) if text)


def chain_frames(conversation: Conversation, fingerprints: Iterable[SplitFingerprint]) -> list[bytes]:
    """The chain without results; like every chain it begins with a link for tenant and format."""
    # Stored keys depend on the tag.
    root = hashlib.sha256(b"skeleton:" + conversation.chain[0]).digest()
    frames = (fingerprint.frame for fingerprint in fingerprints)
    return list(accumulate(frames, lambda link, frame: hashlib.sha256(link + frame).digest(), initial=root))


def has_cleared(fingerprints: Sequence[SplitFingerprint], placeholders: frozenset[bytes]) -> bool:
    """Whether any of the results is a placeholder."""
    return not placeholders.isdisjoint(_list_results(fingerprints))


def make_result_hashes(
    pivot: Pivot, conversation: str, fingerprints: Sequence[SplitFingerprint]
) -> ResultHashes | None:
    """fingerprints: of exactly the covered messages. None if there are no results, or too many."""
    results = _list_results(fingerprints)
    if not 0 < len(results) <= _MAX_RESULTS:
        return None
    return ResultHashes(pivot=pivot.key, conversation=conversation, results=b"".join(results).hex())


def with_result_hashes(
    known: ResultHashesRecord, added: ResultHashes, placeholders: frozenset[bytes]
) -> ResultHashesRecord:
    """The record with new hashes. They replace earlier ones of the same pivot, and those of which they are a
    cleared form.
    """
    if known.is_crowded:
        return known
    results = _split_results(added)
    others = [
        other
        for other in known.outlines
        if other.pivot != added.pivot and not _is_cleared_form(_split_results(other), results, placeholders)
    ]
    if len(others) == _MAX_CANDIDATES:
        return replace(known, outlines=(), is_crowded=True)
    return replace(known, outlines=(*others, added))


def find_result_hashes(
    known: ResultHashesRecord, fingerprints: Sequence[SplitFingerprint], placeholders: frozenset[bytes]
) -> ResultHashes | None:
    """The hashes of which these messages are a cleared form; None if there is no match or more than one."""
    results = _list_results(fingerprints)
    found = [
        hashes for hashes in known.outlines if _is_cleared_form(_split_results(hashes), results, placeholders)
    ]
    return found[0] if len(found) == 1 else None


def rekey(pivot: Pivot, conversation: Conversation) -> Pivot:
    """The pivot under the key of a conversation to which it applies as well; unchanged if that is its key."""
    key = conversation.chain[pivot.covers].hex()
    if key == pivot.key:
        return pivot
    covered = conversation.messages[pivot.opening_end : pivot.covers]
    left_tokens = int(sum(message.size_bytes for message in covered) / _ROUGH_BYTES_PER_TOKEN)
    saved_tokens = min(pivot.saved_tokens, left_tokens)
    return replace(pivot, key=key, saved_tokens=saved_tokens, origin=pivot.origin or pivot.key)


def _is_cleared_form(before: Sequence[bytes], now: Sequence[bytes], placeholders: frozenset[bytes]) -> bool:
    return len(before) == len(now) and all(
        new == old or new in placeholders for old, new in zip(before, now, strict=True)
    )


def _list_results(fingerprints: Sequence[SplitFingerprint]) -> list[bytes]:
    return [result for fingerprint in fingerprints for result in fingerprint.results]


def _split_results(hashes: ResultHashes) -> list[bytes]:
    results = bytes.fromhex(hashes.results)
    return [results[at : at + _FINGERPRINT_BYTES] for at in range(0, len(results), _FINGERPRINT_BYTES)]
