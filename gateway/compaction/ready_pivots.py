"""A pivot that was made for a threshold, and is wanted before the conversation comes there."""

from dataclasses import replace

from gateway.core.history.pivot import Pivot
from gateway.state import State
from gateway.store.interface import StoreError


async def apply_early(state: State, pivot: Pivot) -> None:
    """From the next request on, in all processes. Without a store it waits for its threshold as before.

    A person may be editing it meanwhile, or a summary may be taking the place of a digest.
    """
    if pivot.is_early:
        return
    try:
        async with state.edits.hold(pivot.owner, [pivot.key]) as leases:
            newest = await state.pivots.load_again(pivot.owner, pivot.key)
            if newest is not None and not newest.is_early:
                await state.pivots.save_edited(leases[pivot.key], replace(newest, is_early=True))
    except StoreError:
        # The store has logged it.
        return
