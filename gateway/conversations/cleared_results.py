"""Finds a conversation's pivot again after its client has cleared old tool results itself.

Then the messages' fingerprints have changed, and so has the chain that pivots are found by. Hashes of what a
pivot covers, with the tool results apart, are kept beside it and compared. Only requests that hold a
placeholder and whose history is otherwise unknown are looked at, so no other request pays for this.
"""

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from gateway.bounds.lanes import Lanes
from gateway.conversations.recognizer import Received
from gateway.conversations.turn import Turn
from gateway.core.economy import pass_on_ledger
from gateway.core.history.cleared_results import (
    PLACEHOLDERS,
    ResultHashes,
    ResultHashesRecord,
    SplitFingerprint,
    chain_frames,
    find_placeholders,
    find_result_hashes,
    has_cleared,
    make_result_hashes,
    rekey,
    with_result_hashes,
)
from gateway.core.history.conversation import find_open_group
from gateway.core.history.head import Head
from gateway.core.history.pivot import Pivot
from gateway.logs.fields import name_fields
from gateway.state import State
from gateway.store.interface import StoreError, Unknown
from gateway.wire.format import parse_split_fingerprint

log = logging.getLogger("gateway.compactor")

# Larger bodies are searched in a thread.
_INLINE_BYTES: Final = 64 * 1024
# Records that were found and do not fit. After so many this is another conversation.
_MAX_TRIES: Final = 4


async def record(state: State, turn: Turn, pivot: Pivot) -> None:
    """Keeps the hashes of what a new pivot covers. Losing them costs one more summary.

    Not for a client that drops messages: some of those that the pivot covers cannot be read.
    """
    if turn.received.conversation.trim is not None:
        return
    split = await asyncio.to_thread(_split_messages, turn.received, pivot.covers)
    hashes = make_result_hashes(pivot, turn.conversation_id, split) if split is not None else None
    if split is None or hashes is None:
        return
    key = chain_frames(turn.received.conversation, split)[-1].hex()
    try:
        known = await state.result_hashes.load(turn.owner, [key])
    except Unknown:
        # Others may be there, which must not be lost.
        return
    known = known or ResultHashesRecord(owner=turn.owner, key=key, covers=pivot.covers)
    placeholders = find_placeholders(turn.policy.pruning.placeholder)
    state.result_hashes.save(with_result_hashes(known, hashes, placeholders), turn.conversation_id)


@dataclass(frozen=True)
class Split:
    """A request that may be a known one with cleared results. keys: of the hashes of what was known before,
    the longest part of the history first.
    """

    fingerprints: Sequence[SplitFingerprint]
    cleared: frozenset[bytes]
    keys: list[str]

    def match(self, known: ResultHashesRecord | None) -> ResultHashes | None:
        """The hashes of which this request is a cleared form."""
        if known is None or known.key not in self.keys:
            return None
        return find_result_hashes(known, self.fingerprints[: known.covers], self.cleared)

    def without(self, known: ResultHashesRecord) -> "Split":
        """Without what does not fit, and everything that is longer."""
        return replace(self, keys=self.keys[self.keys.index(known.key) + 1 :])


async def split(lanes: Lanes, received: Received, head: Head | None, placeholder: str) -> Split | None:
    """None if no result was cleared.

    head: the nearest known one. placeholder: the policy's own, which a client may use, too.
    """
    data, cleared = received.body.data, find_placeholders(placeholder)
    if len(data) < _INLINE_BYTES:
        is_spelled = _holds_placeholder(data, placeholder)
    else:
        is_spelled = await lanes.run(received.owner, len(data), _holds_placeholder, data, placeholder)
    if not is_spelled:
        return None
    fingerprints, frames = await lanes.run(received.owner, len(data), _split_and_chain, received)
    if fingerprints is None or not has_cleared(fingerprints, cleared):
        return None
    nearest = head.length if head is not None else 0
    return Split(fingerprints, cleared, [key.hex() for key in reversed(frames[nearest + 1 :])])


async def find(
    state: State, received: Received, scope: str, asked: Split, known: ResultHashesRecord | None
) -> Head | None:
    """A head with the pivot that was made before the results were cleared; None if there is none.

    known: the hashes of the first key that has any. Where they belong to another history, the store is asked
    for further ones. Raises Unknown.
    """
    for _ in range(_MAX_TRIES):
        if known is None or known.key not in asked.keys:
            return None
        hashes = asked.match(known)
        pivot = await state.pivots.load(received.owner, hashes.pivot) if hashes is not None else None
        if hashes is not None and pivot is not None and pivot.covers == known.covers:
            state.pivots.refresh(pivot, ())
            state.result_hashes.save(known, hashes.conversation)
            return await _adopt(state, received, scope, hashes, pivot)
        asked = asked.without(known)
        known = await state.result_hashes.load(received.owner, asked.keys)
    return None


async def _adopt(
    state: State, received: Received, scope: str, hashes: ResultHashes, original: Pivot
) -> Head | None:
    """Stores the pivot under this conversation's own key, and makes a head with which it is active.

    The conversation keeps its id if only one branch with these tools is known to continue from the pivot.
    Otherwise the head belongs to no branch, so that each request that continues from it begins a new one.
    """
    conversation = received.conversation
    pivot = rekey(original, conversation)
    if pivot is not original:
        try:
            await state.pivots.save(pivot)
        except StoreError:
            return None
    tools = received.body.envelope.tools.hex()
    heads = [head for head in state.pivots.find_followers(original) if head.tools == tools]
    is_one = len({head.conversation for head in heads}) == 1
    latest = max(heads, key=lambda head: head.length) if is_one else None
    head = Head(
        owner=received.owner,
        key=pivot.key,
        length=pivot.covers,
        scope=scope,
        tools=tools if latest is not None else "",
        prompt_tokens=0,
        output_tokens=0,
        growth_tokens=latest.growth_tokens if latest is not None else 0.0,
        pivot=pivot.key,
        batches=(),
        conversation=latest.conversation if latest is not None else hashes.conversation,
        parent=latest.parent if latest is not None else None,
        pivot_version=pivot.version,
        ledger=pass_on_ledger(latest, scope),
    )
    nearest = state.heads.find(conversation, scope)
    if nearest is None or nearest.length < head.length:
        state.heads.save(head)
    log.info(
        "pivot found again after cleared results: covers=%d conversation=%s",
        *(pivot.covers, head.conversation),
        extra=name_fields(conversation=head.conversation),
    )
    return state.heads.find(conversation, scope)


def _split_and_chain(received: Received) -> tuple[list[SplitFingerprint] | None, list[bytes]]:
    """Of everything before the open group, with the chain without results."""
    split = _split_messages(received, find_open_group(received.conversation))
    return split, chain_frames(received.conversation, split) if split is not None else []


def _split_messages(received: Received, end: int) -> list[SplitFingerprint] | None:
    """The fingerprints of the messages before `end`, each without its tool results, and of those results.

    None if a message cannot be split. Called from a thread, because results may be large.
    """
    fingerprints: list[SplitFingerprint] = []
    for position, message in enumerate(received.conversation.messages[:end]):
        fingerprint = parse_split_fingerprint(received.format, message, received.raw(position))
        if fingerprint is None:
            return None
        fingerprints.append(fingerprint)
    return fingerprints


def _holds_placeholder(data: bytes, placeholder: str) -> bool:
    return any(spelling in data for spelling in _spell(placeholder))


@lru_cache(maxsize=64)
def _spell(placeholder: str) -> tuple[bytes, ...]:
    """The placeholders as JSON encoders write them, without the quotes."""
    texts = [text for text in (*PLACEHOLDERS, placeholder) if text]
    spelled = [json.dumps(text, ensure_ascii=ascii_only) for text in texts for ascii_only in (True, False)]
    return tuple(dict.fromkeys(text[1:-1].encode("utf-8", "surrogatepass") for text in spelled))
