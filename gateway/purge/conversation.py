"""Deletes what the stores hold of one conversation.

Names that an upstream has given stay, without what they stand for, because the client may go on with them;
so do calibrations and limits, which belong to the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.activity.stored import KIND
from gateway.originals.archive import find_own_originals
from gateway.purge.stored import PurgeCount
from gateway.reporting.compaction_log import find_log, find_place_tag
from gateway.sessions.stored import find_session_names
from gateway.state.conversation_traces import ConversationTraces, find_stored
from gateway.state.named_turns import find_given
from gateway.store import Store
from gateway.store.keys import make_key
from gateway.store.stores import Stores


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversationPurge:
    """tag: of the owner. traces: what is known of it beside the stores."""

    tag: str
    conversation_id: str
    traces: ConversationTraces = field(default_factory=ConversationTraces)


@dataclass(frozen=True, kw_only=True, slots=True)
class PurgedConversation:
    count: PurgeCount
    # With what the stores knew.
    traces: ConversationTraces


async def purge_conversation(stores: Stores, purge: ConversationPurge) -> PurgedConversation:
    """Raises StoreError; what is deleted by then stays so."""
    tag, identity = purge.tag, purge.conversation_id
    found = await find_stored(stores.main, tag, identity, purge.traces)
    # A process that was adding to it while it forgot the conversation has written it once more.
    did = make_key(tag, KIND, identity)
    is_noted = await stores.main.read(did) is not None
    session = await find_session_names(stores.main, tag, identity)
    log = await find_log(stores.main, tag, identity)
    state = [*found.names, *log, *session.state, *([did] if is_noted else [])]
    originals = [*await find_own_originals(stores.originals, tag, identity), *session.diffs]
    named = await find_given(stores.named, tag, identity)
    count = PurgeCount(
        state=len(state) + await _delete(stores.main, identity, state),
        originals=len(originals) + await _delete(stores.originals, identity, originals),
        named=len(named) + await _delete(stores.named, identity, named),
    )
    return PurgedConversation(count=count, traces=found.traces)


async def _delete(store: Store, conversation_id: str, names: Sequence[str]) -> int:
    """Their bytes leave the files, too, as those of every purge do. Returns how many more records pointed to
    the conversation.
    """
    for name in names:
        store.delete(name)
    return await store.purge(find_place_tag(conversation_id))
