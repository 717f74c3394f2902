from dataclasses import replace

from gateway.core.compaction.plan import Plan
from gateway.core.compaction.plan_fingerprint import UNCHANGED, fingerprint_plan
from gateway.core.history.pivot import Batch, Mark, Pivot
from tests.builders.chat import converse
from tests.builders.recalls import make_recall

PIVOT = Pivot(
    owner="t",
    key="ab",
    covers=4,
    opening_end=1,
    summary="S",
    question=None,
    resume="",
    tokens=1,
    opening_chars=None,
    opening_tokens=1,
    saved_tokens=1,
    created_seconds=1.0,
)
BATCH = Batch(owner="t", key="cd", length=6, placeholder="…", marks=(Mark(5, None),), saved_tokens=1)
PLAN = Plan(pivot=PIVOT, batches=(BATCH,), new_batch=None, received=9, sent=5, output=None)


def test_a_plan_that_changes_nothing_has_none() -> None:
    assert fingerprint_plan(replace(PLAN, pivot=None, batches=())) == UNCHANGED


def test_sizes_and_the_length_of_the_reply_do_not_count() -> None:
    other = replace(PLAN, received=10, sent=6, output=7, new_batch=BATCH)
    assert fingerprint_plan(other) == fingerprint_plan(PLAN)


def test_everything_that_changes_the_messages_counts() -> None:
    others = [
        replace(PLAN, pivot=None),
        replace(PLAN, recalls=(make_recall(converse([]), 0),)),
        replace(PLAN, batches=()),
        replace(PLAN, batches=(BATCH, BATCH)),
        replace(PLAN, pivot=replace(PIVOT, summary="T")),
        replace(PLAN, pivot=replace(PIVOT, created_seconds=2.0)),
        replace(PLAN, pivot=replace(PIVOT, key="ac", covers=5)),
        replace(PLAN, pivot=replace(PIVOT, opening_chars=9)),
        replace(PLAN, pivot=replace(PIVOT, question="Q", summary="S")),
        replace(PLAN, batches=(replace(BATCH, marks=(Mark(5, 100),)),)),
        replace(PLAN, batches=(replace(BATCH, placeholder=""),)),
    ]
    found = [fingerprint_plan(plan) for plan in (PLAN, *others)]
    assert len(set(found)) == len(found)
