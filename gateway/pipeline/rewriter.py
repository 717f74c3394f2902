"""Carries out a plan on a body: gathers the edits and splices them in, once each.

Rendered marks are remembered, so that a shortened message is parsed once in its life.
"""

from functools import partial

from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.history.pivot import Mark, Pivot
from gateway.core.history.view import View
from gateway.lru import Lru
from gateway.wire.edits import Edit, apply_edits, make_output_edit, make_usage_edit, make_view_edits
from gateway.wire.wire_format import WireFormat

_WEIGHT_BYTES = 300

Key = tuple[bytes, int | None, str] | tuple[str, float, str]


class Rewriter:
    def __init__(self, max_bytes: int) -> None:
        self._rendered: Lru[Key, bytes] = Lru(max_bytes)

    def rewrite(self, turn: Turn, plan: Plan) -> bytes:
        """The outgoing body; the very object that was received where nothing changes."""
        edits = self._edits(turn, plan)
        return apply_edits(turn.received.body.data, edits) if edits else turn.received.body.data

    def rewrite_with_usage(self, turn: Turn, plan: Plan) -> bytes:
        """The same, asking for usage in the stream."""
        body = turn.received.body
        return apply_edits(body.data, [*self._edits(turn, plan), make_usage_edit(body)])

    def _edits(self, turn: Turn, plan: Plan) -> list[Edit]:
        body, conversation = turn.received.body, turn.received.conversation
        edits: list[Edit] = []
        if plan.pivot is not None or plan.batches:
            view = plan.view
            render_pivot = partial(self._render_pivot, turn.received.form)
            edits = make_view_edits(body, conversation, view, self._render(turn, view, plan), render_pivot)
        if plan.output is not None:
            edits.append(make_output_edit(body, plan.output))
        return edits

    def _render(self, turn: Turn, view: View, plan: Plan) -> dict[int, bytes]:
        """The messages that are sent shortened, by position."""
        pivot = view.pivot
        if not view.marks and (pivot is None or pivot.opening_chars is None):
            return {}
        placeholders = {mark.position: batch.placeholder for batch in plan.batches for mark in batch.marks}
        rendered = {
            position: self._render_one(turn, position, mark, placeholders[position])
            for position, mark in view.marks.items()
        }
        if pivot is not None and pivot.opening_chars is not None:
            for position in range(pivot.opening_end):
                rendered[position] = self._render_one(turn, position, Mark(position, pivot.opening_chars), "")
        return rendered

    def _render_pivot(self, form: WireFormat, pivot: Pivot, next_role: str) -> bytes:
        key = (pivot.key, pivot.created_seconds, next_role)
        found = self._rendered.get(key)
        if found is None:
            found = form.render_summary(pivot, next_role)
            self._rendered.put(key, found, len(found) + _WEIGHT_BYTES)
        return found

    def _render_one(self, turn: Turn, position: int, mark: Mark, placeholder: str) -> bytes:
        message = turn.received.conversation.messages[position]
        key = (message.key, mark.keep_chars, placeholder)
        found = self._rendered.get(key)
        if found is None:
            found = turn.received.form.render_marked(turn.received.raw(position), mark, placeholder)
            self._rendered.put(key, found, len(found) + _WEIGHT_BYTES)
        return found
