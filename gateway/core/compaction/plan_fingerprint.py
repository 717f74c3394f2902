"""What a plan changes, as a fingerprint: two plans with the same one send the same bytes for the same
messages.

An upstream that holds a history holds what was sent to it. So a request that only names that history may go
as it came if its plan makes the same changes to it again.
"""

import hashlib
from typing import Final

from gateway.core.compaction.plan import Plan

# Of a plan that changes nothing.
UNCHANGED: Final = ""


def fingerprint_plan(plan: Plan) -> str:
    """The length of the reply does not count: it is not a part of the history."""
    if plan.pivot is None and not plan.batches and not plan.recalls:
        return UNCHANGED
    state = hashlib.sha256()
    pivot = plan.pivot
    if pivot is not None:
        state.update(
            repr(
                (pivot.key, pivot.covers, pivot.opening_end, pivot.opening_chars, pivot.created_seconds)
            ).encode()
        )
        texts = (pivot.question, pivot.text, pivot.resume)
        state.update(repr(texts).encode("utf-8", "surrogatepass"))
    for batch in plan.batches:
        state.update(repr((batch.key, batch.placeholder, batch.marks)).encode("utf-8", "surrogatepass"))
    for recall in plan.recalls:
        state.update(repr((recall.key, recall.position)).encode())
    return state.hexdigest()
