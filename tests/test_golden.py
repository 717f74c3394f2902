"""Worked examples: each folder of tests/golden holds a request, the known state, and the forwarded body.

known.json may hold: the `format` (default: chat), the active `pivot` (covers, summary, keeps_opening,
opening_chars), the active `marks` (position, keep_chars), the `limits`, and `asked_for_usage`. A token is
four bytes. Every byte of outgoing.json counts. Adding an example takes no code.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.conversations.recognizer import Received, Recognizer
from gateway.core.compaction.decision import decide
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.situation import Situation
from gateway.core.history.pivot import Mark, Pivot
from gateway.core.history.view import View
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Policy
from gateway.core.sizing.estimate import Calibration, Known
from gateway.outgoing.rewriter import Rewriter
from gateway.wire.edits import make_usage_edit
from gateway.wire.formats.registry import FORMATS
from tests.builders.chat import make_batch, make_pivot, make_turn, measure_sizes

_GOLDEN = Path(__file__).parent / "golden"
_EXAMPLES = sorted(path.name for path in _GOLDEN.iterdir())


def make_known_pivot(received: Received, pivot: dict[str, Any]) -> Pivot:
    conversation = received.conversation
    return make_pivot(
        conversation,
        pivot["covers"],
        summary=pivot["summary"],
        opening_end=conversation.opening_end if pivot.get("keeps_opening", True) else 0,
        opening_chars=pivot.get("opening_chars"),
    )


def decide_on(received: Received, known: dict[str, Any]) -> Plan:
    pivot = make_known_pivot(received, known["pivot"]) if "pivot" in known else None
    marks = [Mark(mark["position"], mark.get("keep_chars")) for mark in known.get("marks", ())]
    plan = decide(
        Situation(
            owner="t",
            conversation=received.conversation,
            sizes=measure_sizes(received),
            policy=Policy(),
            limits=Limits(**known.get("limits", {})),
            requested=received.body.envelope.requested_tokens,
            minimum_reply=received.body.envelope.minimum_reply_tokens,
            growth=0.0,
            known=Known(head=None, head_view=View(None, {}), calibration=Calibration(1.0, 1)),
            sticky=pivot,
            pivots=[pivot] if pivot else [],
            batches=[make_batch(received.conversation, marks)] if marks else [],
            may_compact=False,
        )
    )
    assert isinstance(plan, Plan)
    return plan


@pytest.mark.system(6)
@pytest.mark.parametrize("example", _EXAMPLES)
def test_the_forwarded_body_is_that_of_the_example(example: str) -> None:
    folder = _GOLDEN / example
    known = json.loads((folder / "known.json").read_text("utf-8"))
    wire_format = FORMATS[known.get("format", "chat")]
    body = (folder / "request.json").read_bytes()
    received = Recognizer(1 << 20, 1 << 20, 8).recognize("t", wire_format, body)
    turn, plan, rewriter = make_turn(received), decide_on(received, known), Rewriter(1 << 20)
    asks = known.get("asked_for_usage")
    sent = (
        rewriter.rewrite(turn, plan, [make_usage_edit(received.body)])
        if asks
        else rewriter.rewrite(turn, plan)
    )
    assert sent == (folder / "outgoing.json").read_bytes()
