"""Finds a conversation's pivot again after its client has cleared old tool results itself.

Only a request that goes on from nothing known, and holds a placeholder, is looked at; nobody else pays.
"""

import asyncio
import json
import logging
from functools import lru_cache
from typing import Final

from gateway.conversations.recognizer import Received
from gateway.conversations.turn import Turn
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
from gateway.state.state import State
from gateway.store import StoreError
from gateway.wire.wire_format import parse_result_hashes

log = logging.getLogger("gateway.compactor")

# Places that look right and hold nothing that fits: more of them is not bad luck but another conversation.
_MOST_TRIES: Final = 4


async def record(state: State, turn: Turn, pivot: Pivot) -> None:
    """Beside a new pivot: the outline of what it covers. A lost one costs a summary."""
    skeletons = await _read_skeletons(turn.received, pivot.covers)
    outline = make_result_hashes(pivot, turn.conversation_id, skeletons) if skeletons is not None else None
    if skeletons is None or outline is None:
        return
    key = chain_frames(turn.received.conversation, skeletons)[-1].hex()
    known = await state.pivots.load_result_hashes(turn.owner, [key])
    known = known or ResultHashesRecord(owner=turn.owner, key=key, covers=pivot.covers)
    state.pivots.save_result_hashes(
        with_result_hashes(known, outline, find_placeholders(turn.policy.pruning.placeholder))
    )


async def find(
    state: State, received: Received, scope: str, head: Head | None, placeholder: str
) -> Head | None:
    """A head that names the pivot of the prefix as it was before it was cleared; None where none is found.

    head: the nearest one that is known. placeholder: the policy's own; a client may have been told it.
    """
    if not any(spelling in received.body.data for spelling in _spell(placeholder)):
        return None
    conversation = received.conversation
    cleared = find_placeholders(placeholder)
    skeletons = await _read_skeletons(received, find_open_group(conversation))
    if skeletons is None or not has_cleared(skeletons, cleared):
        return None
    nearest = head.length if head is not None else 0
    keys = [key.hex() for key in reversed(chain_frames(conversation, skeletons)[nearest + 1 :])]
    for _ in range(_MOST_TRIES):
        known = await state.pivots.load_result_hashes(received.tenant, keys)
        if known is None or known.key not in keys:
            return None
        outline = find_result_hashes(known, skeletons[: known.covers], cleared)
        pivot = await state.pivots.load(received.tenant, outline.pivot) if outline is not None else None
        if outline is not None and pivot is not None and pivot.covers == known.covers:
            state.pivots.refresh(pivot, ())
            state.pivots.save_result_hashes(known)
            return await _adopt(state, received, scope, outline, pivot)
        keys = keys[keys.index(known.key) + 1 :]
    return None


async def _adopt(
    state: State, received: Received, scope: str, outline: ResultHashes, original: Pivot
) -> Head | None:
    """The pivot under the key of this conversation, durable; and a head that puts it in force.

    The conversation keeps its id where all that is known to have gone on from the pivot is one branch with
    these tools. Otherwise the head is nobody's in particular: whoever goes on from it gets an id of its own.
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
        owner=received.tenant,
        key=pivot.key,
        length=pivot.covers,
        scope=scope,
        tools=tools if latest is not None else "",
        prompt_tokens=0,
        output_tokens=0,
        growth_tokens=latest.growth_tokens if latest is not None else 0.0,
        pivot=pivot.key,
        batches=(),
        conversation=latest.conversation if latest is not None else outline.conversation,
        parent=latest.parent if latest is not None else None,
    )
    nearest = state.heads.find(conversation, scope)
    if nearest is None or nearest.length < head.length:
        state.heads.save(head)
    log.info("found again behind cleared results: covers=%d conversation=%s", pivot.covers, head.conversation)
    return state.heads.find(conversation, scope)


async def _read_skeletons(received: Received, end: int) -> list[SplitFingerprint] | None:
    """Of the first messages; None where one cannot be taken apart. In a thread: results may be large."""
    messages = received.conversation.messages[:end]

    def read() -> list[SplitFingerprint] | None:
        skeletons: list[SplitFingerprint] = []
        for position, message in enumerate(messages):
            skeleton = parse_result_hashes(received.form, message, received.raw(position))
            if skeleton is None:
                return None
            skeletons.append(skeleton)
        return skeletons

    return await asyncio.to_thread(read)


@lru_cache(maxsize=64)
def _spell(placeholder: str) -> tuple[bytes, ...]:
    """As JSON encoders write them, without the quotes."""
    texts = [text for text in (*PLACEHOLDERS, placeholder) if text]
    spelled = [json.dumps(text, ensure_ascii=ascii_only) for text in texts for ascii_only in (True, False)]
    return tuple(dict.fromkeys(text[1:-1].encode("utf-8", "surrogatepass") for text in spelled))
