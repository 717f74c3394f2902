"""Carries out a plan on a body: collects the edits and applies them all at once.

Rendered messages are kept, so that a shortened message is parsed once in its life. May be used from several
threads.
"""

from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock

from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.history.pivot import Mark, Pivot
from gateway.core.history.view import View
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.wire.arrays import Arrays, ArraySource, ArrayWindow, make_arrays
from gateway.wire.edits import Edit, apply_edits, make_output_edit, make_recall_edits, make_view_edits
from gateway.wire.format import Format

_WEIGHT_BYTES = ENTRY_WEIGHT_BYTES + 300

# Identifies a shortened message, or the messages of a pivot.
RenderedKey = tuple[bytes, int | None, str] | tuple[str, float, int, str, str | None]


class Rewriter:
    def __init__(self, max_bytes: int) -> None:
        self._rendered: Lru[RenderedKey, bytes] = Lru(max_bytes)
        self._lock = Lock()

    def clear(self) -> None:
        """What was rendered is rendered again."""
        with self._lock:
            self._rendered.clear()

    def rewrite(self, turn: Turn, plan: Plan, more: Sequence[Edit] = ()) -> bytes:
        """The received body itself if nothing of it changes. more: edits beside those of the plan, which come
        last where they meet.
        """
        return apply_edits(turn.received.body.data, [*self._make_edits(turn, plan), *more])

    def show(self, turn: Turn, plan: Plan, window: ArrayWindow) -> Arrays:
        """A part of the array as received and as this plan sends it."""
        view = plan.view
        placeholders = _find_placeholders(plan)

        def render(position: int) -> bytes:
            mark = view.marks.get(position) or _find_opening_mark(view, position)
            return self._render_message(turn, mark, placeholders.get(position, ""))

        source = ArraySource(
            body=turn.received.body,
            conversation=turn.received.conversation,
            view=view,
            render_shortened=render,
            render_summary=partial(self._render_pivot, turn.received.format),
            recalled={recall.position: recall.text.encode() for recall in plan.recalls},
        )
        return make_arrays(source, window)

    def _make_edits(self, turn: Turn, plan: Plan) -> list[Edit]:
        body, conversation = turn.received.body, turn.received.conversation
        edits: list[Edit] = []
        if plan.changes_prefix:
            view = plan.view
            render_pivot = partial(self._render_pivot, turn.received.format)
            rendered = self._render_shortened(turn, view, plan)
            edits = make_view_edits(body, conversation, view, rendered, render_pivot)
            edits += make_recall_edits(body, conversation, plan.recalls)
        if plan.output is not None:
            edits.append(make_output_edit(body, plan.output))
        return edits

    def _render_shortened(self, turn: Turn, view: View, plan: Plan) -> dict[int, bytes]:
        """The messages that are sent shortened, by position."""
        pivot = view.pivot
        if not view.marks and (pivot is None or pivot.opening_chars is None):
            return {}
        placeholders = _find_placeholders(plan)
        rendered = {
            position: self._render_message(turn, mark, placeholders[position])
            for position, mark in view.marks.items()
        }
        if pivot is not None and pivot.opening_chars is not None:
            # A pivot of an earlier version. A mark is newer: the opening was refused behind it.
            for position in range(pivot.opening_end):
                if position not in rendered:
                    rendered[position] = self._render_message(turn, Mark(position, pivot.opening_chars), "")
        return rendered

    def _render_pivot(self, wire_format: Format, pivot: Pivot, next_role: str) -> bytes:
        key = (pivot.key, pivot.created_seconds, pivot.version, next_role, pivot.question)
        return self._find_or_render(key, lambda: wire_format.render_summary(pivot, next_role))

    def _render_message(self, turn: Turn, mark: Mark, placeholder: str) -> bytes:
        message = turn.received.conversation.messages[mark.position]
        key = (message.key, mark.keep_chars, placeholder)
        received = turn.received
        return self._find_or_render(
            key, lambda: received.format.render_marked(received.raw(mark.position), mark, placeholder)
        )

    def _find_or_render(self, key: RenderedKey, render: Callable[[], bytes]) -> bytes:
        with self._lock:
            found = self._rendered.get(key)
        if found is None:
            found = render()
            with self._lock:
                self._rendered.put(key, found, len(found) + _WEIGHT_BYTES)
        return found


def _find_placeholders(plan: Plan) -> dict[int, str]:
    """By position."""
    return {mark.position: batch.placeholder for batch in plan.batches for mark in batch.marks}


def _find_opening_mark(view: View, position: int) -> Mark:
    return Mark(position, view.pivot.opening_chars if view.pivot is not None else None)
