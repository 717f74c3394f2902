"""The presets that follow opencode decide as opencode did in recorded cases.

Cases are mapped to chat messages. Cases that do not apply to a gateway are named here with the reason.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.core.compaction.decision import decide, decide_after
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.situation import Situation
from gateway.core.history.conversation import Conversation
from gateway.core.history.pivot import Pivot, find_eligible_pivots
from gateway.core.history.view import FRAME_TOKENS, Size, View
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Policy
from gateway.core.sizing.estimate import Calibration, Known, Sizes
from gateway.outgoing.rewriter import Rewriter
from tests.builders.chat import JSON, converse, make_batch, make_pivot, make_turn, read, render
from tests.shared_data import SHARED, requires_shared
from tests.sources.recorded_pruning import RecordedPruning
from tests.sources.test_presets import load_preset

pytestmark = requires_shared

_CALIBRATED = Known(head=None, head_view=View(None, {}), calibration=Calibration(1.0, 3))
# A request has at least one message. Without messages before the question no summary is made.
_NOT_FOR_A_GATEWAY = {"empty", "cut at the compaction point"}


def read_cases(kind: str) -> list[dict[str, Any]]:
    path = SHARED / "data" / "vectors.json"
    if not path.is_file():
        return []
    cases: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))[kind]["cases"]
    return cases


def named(cases: list[dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=[case["name"] for case in cases])


def situate(policy: Policy, messages: list[JSON], tokens: list[int], **fields: Any) -> Situation:
    """`tokens`: those of the words alone."""
    sizes = [Size(FRAME_TOKENS + each, 4 * each) for each in tokens]
    defaults: JSON = {
        "owner": "t",
        "conversation": converse(messages),
        "sizes": Sizes(messages=sizes, environment=0),
        "policy": policy,
        "limits": Limits(),
        "requested": None,
        "growth": 0.0,
        "known": _CALIBRATED,
        "sticky": None,
        "pivots": [],
        "batches": [],
        "may_compact": policy.auto,
    }
    return Situation(**(defaults | fields))


# Whether the window is full after a response with usage.


def is_full(policy: Policy, case: dict[str, Any]) -> bool:
    told = case["tokens"]
    total = told["input"] + told["cache_read"] + told["cache_write"] + told["output"]
    prompt = total - told["output"]
    # Everything but the last question can be replaced.
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    situation = situate(
        replace(policy, auto=case["auto"]),
        [*messages, {"role": "user", "content": "c"}],
        [10, prompt, 10],
        limits=Limits(**case["limit"]),
    )
    return decide_after(situation, total) is not None


@pytest.mark.system(1)
@named([case for case in read_cases("is_overflow") if case["seed_formula"] is not None])
def test_opencode_is_full_as_recorded_for_the_older_formula(case: dict[str, Any], tmp_path: Path) -> None:
    """The recorded formula has no cap on the output; 000 (docs/sources.md) has one, so it is raised here."""
    cap = max(32_000, case["limit"]["output"])
    policy = load_preset(tmp_path, "opencode", f", trigger: {{output_cap: {cap}}}")
    assert is_full(policy, case) == case["seed_formula"]


@pytest.mark.system(1)
@named(read_cases("is_overflow"))
def test_opencode_current_is_full_as_recorded(case: dict[str, Any], tmp_path: Path) -> None:
    keys = f", trigger: {{input_reserve: {case['reserved']}}}" if "reserved" in case else ""
    assert is_full(load_preset(tmp_path, "opencode-current", keys), case) == case["current"]


# Which results are pruned.


class Recorded(RecordedPruning):
    def plan(self, policy: Policy) -> list[list[int]]:
        conversation = converse(self.messages)
        pivot = make_pivot(conversation, self.start, opening_end=0) if self.start else None
        batches = [make_batch(conversation, self.marks, length=len(self.messages) - 1)] if self.marks else []
        situation = situate(
            policy,
            self.messages,
            self.tokens,
            limits=Limits(context=10_000_000),
            sticky=pivot,
            pivots=[pivot] if pivot else [],
            batches=batches,
        )
        plan = decide(situation)
        assert isinstance(plan, Plan)
        marks = plan.new_batch.marks if plan.new_batch is not None else ()
        assert all(mark.keep_chars is None for mark in marks)
        return [self.places[mark.position] for mark in marks]


@pytest.mark.system(6)
@named(read_cases("prune"))
@pytest.mark.parametrize("preset", ["opencode", "opencode-current"])
def test_opencode_prunes_as_recorded(preset: str, case: dict[str, Any], tmp_path: Path) -> None:
    keys = "" if case.get("enabled", True) else ", compaction: {prune: false}"
    assert Recorded(case).plan(load_preset(tmp_path, preset, keys)) == case["cleared"]


# The messages that are sent after a compaction.


class Compacted:
    """A case as a client of a gateway sends it: without question and summary, which the gateway adds.

    Failed summaries are part of the recorded history, but the gateway never stored them, so they are not
    sent.
    """

    def __init__(self, case: dict[str, Any]) -> None:
        stored = case["stored"]
        points = {message["id"] for message in stored if message.get("compaction")}
        self.received = [m for m in stored if m["id"] not in points and not m.get("summary")]
        self.summaries = [m for m in stored if m.get("summary") and m.get("finish") and not m.get("error")]
        made = {m["id"] for m in self.summaries} | {m["parent"] for m in self.summaries}
        ours = points | {message["id"] for message in stored if message.get("summary")}
        self.expected = [each for each in case["sent"] if each not in ours - made]
        self._stored = stored

    @property
    def messages(self) -> list[JSON]:
        return [{"role": message["role"], "content": message["id"]} for message in self.received]

    def pivots(self, conversation: Conversation) -> list[Pivot]:
        return [self._pivot(conversation, summary) for summary in self.summaries]

    def _pivot(self, conversation: Conversation, summary: dict[str, Any]) -> Pivot:
        at = next(i for i, message in enumerate(self._stored) if message["id"] == summary["parent"])
        ids = [message["id"] for message in self.received]
        before = [ids.index(message["id"]) for message in self._stored[:at] if message["id"] in ids]
        tail = self._stored[at].get("tail")
        covers = ids.index(tail) if tail else before[-1] + 1
        fields = {"summary": summary["id"], "question": summary["parent"], "resume": "resume"}
        return make_pivot(conversation, covers, opening_end=0, **fields)

    def send(self, policy: Policy) -> list[str]:
        body = render(self.messages)
        received = read(body)
        conversation = received.conversation
        pivots = find_eligible_pivots(conversation, self.pivots(conversation))
        situation = situate(
            policy,
            self.messages,
            [1] * len(self.messages),
            limits=Limits(context=100_000),
            sticky=pivots[-1] if pivots else None,
            pivots=pivots,
        )
        plan = decide(situation)
        assert isinstance(plan, Plan)
        sent = json.loads(Rewriter(1 << 20).rewrite(make_turn(received), plan))["messages"]
        return [message["content"] for message in sent]


@pytest.mark.system(5)
@named([case for case in read_cases("history_after_compaction") if case["name"] not in _NOT_FOR_A_GATEWAY])
def test_opencode_sends_the_newest_summary_and_later_messages(case: dict[str, Any], tmp_path: Path) -> None:
    sent = Compacted(case).send(load_preset(tmp_path, "opencode"))
    # Roles alternate: the resume text comes between a summary and a tail that begins with the assistant.
    assert [each for each in sent if each != "resume"] == Compacted(case).expected


@pytest.mark.system(5)
def test_a_fork_of_a_compacted_conversation_inherits_the_cut(tmp_path: Path) -> None:
    name = "verbatim tail from a user message"
    case = next(case for case in read_cases("history_after_compaction") if case["name"] == name)
    fork = Compacted(case)
    before = fork.send(load_preset(tmp_path, "opencode"))
    # The fork sends the same messages and continues differently.
    fork.received = [*fork.received[:-1], {"id": "a9", "role": "assistant"}]
    after = fork.send(load_preset(tmp_path, "opencode"))
    assert len(after) == len(before) == 6
    assert after[:-1] == before[:-1]
