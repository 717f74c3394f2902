"""What each preset does with the same scripted conversations, by `tests/tables/presets.yaml`.

They are played through the real decisions and an exact upstream, without a socket or a clock: every number
can be worked out by hand. A message is its role and its tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gateway.core.compaction.cut import Cut
from gateway.core.compaction.decision import CompactFirst, DigestFirst, decide, decide_after
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.situation import Situation
from gateway.core.history.pivot import Batch, Pivot, find_eligible_batches, find_eligible_pivots
from gateway.core.history.view import FRAME_TOKENS, Size
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Compaction, Policy
from gateway.core.sizing.estimate import Calibration, Sizes
from gateway.settings.load import find_config_folder
from tests.decisions.builders import CALIBRATED, JSON, converse, make_pivot, make_situation, planned
from tests.decisions.test_tables import Row, load_policy, load_table, rows

_SUMMARY_TOKENS = 1_000
# Of the note about left-out messages.
_DROPPED_TOKENS = 50
_LIMITS = Limits(context=100_000, output=8_000)
# A role and its tokens.
Script = Sequence[tuple[str, int]]
_TURN = [("user", 100), ("assistant", 100), ("tool", 4_700), ("assistant", 100)]
_SCRIPTS: dict[str, Script] = {
    "prose": [("user", 100), *[("assistant", 1_900), ("user", 100)] * 60],
    "talk": [*_TURN * 24, ("user", 100)],
}


@dataclass(kw_only=True, slots=True)
class Played:
    # For each compaction the tokens that were too many, of an answer or a request, and the messages kept.
    compacted: list[list[int]] = field(default_factory=list)
    summaries: int = 0
    most_sent: int = 0
    last: Plan | None = None
    messages: int = 0


def play(policy: Policy, script: Script, *, fails: bool = False) -> Played:
    """Each request of the script, one after the other; `fails`: no summary is ever to be had."""
    played, pivots = Played(), list[Pivot]()
    batches: Sequence[Batch] = ()
    sticky: Pivot | None = None
    for length in list_requests(script):
        situation = situate(policy, script[:length])
        conversation = situation.conversation
        situation = replace(situation, pivots=find_eligible_pivots(conversation, pivots), sticky=sticky)
        situation = replace(situation, batches=find_eligible_batches(conversation, batches))
        plan = decide_finally(played, situation, pivots, fails=fails)
        sticky, batches = plan.pivot, plan.batches
        played.last, played.messages = plan, length - plan.view.start
        played.most_sent = max(played.most_sent, plan.sent)
        total = plan.sent + (script[length][1] if length < len(script) else 0)
        cut = decide_after(replace(situation, sticky=sticky, pivots=pivots, batches=batches), total)
        if cut is not None and not fails:
            pivots.append(fold(played, situation, cut, total))
    return played


def list_requests(script: Script) -> Iterator[int]:
    """Lengths at which it is the model's turn."""
    for length in range(1, len(script) + 1):
        is_answered = length == len(script) or script[length][0] == "assistant"
        if script[length - 1][0] != "assistant" and is_answered:
            yield length


def decide_finally(played: Played, situation: Situation, pivots: list[Pivot], *, fails: bool) -> Plan:
    """Compacts first if the plan demands it, as the planning step does."""
    while True:
        match decide(situation):
            case Plan() as plan:
                return plan
            case CompactFirst() if fails:
                situation = replace(situation, may_compact=False)
            case CompactFirst(cut=cut) | DigestFirst(cut=cut):
                plain = replace(situation.policy, compaction=Compaction(auto=False, prune=False))
                whole = replace(situation, policy=plain, may_compact=False, may_digest=False)
                pivots.append(fold(played, situation, cut, planned(whole).sent))
                eligible = find_eligible_pivots(situation.conversation, pivots)
                situation = replace(situation, pivots=eligible, may_digest=False)


def fold(played: Played, situation: Situation, cut: Cut, at: int) -> Pivot:
    conversation, policy = situation.conversation, situation.policy
    played.compacted.append([at, len(conversation.messages) - cut.covers])
    played.summaries += policy.summary.method == "model" and situation.may_compact
    opening_end = conversation.opening_end if policy.keep.opening else 0
    tokens = _SUMMARY_TOKENS if policy.summary.method == "model" else _DROPPED_TOKENS
    opening = sum(size.tokens for size in situation.sizes.messages[:opening_end])
    return make_pivot(
        conversation, cut.covers, opening_end=opening_end, tokens=tokens, opening_tokens=opening
    )


def situate(policy: Policy, script: Script) -> Situation:
    messages: list[JSON] = []
    for at, (role, _) in enumerate(script):
        message: JSON = {"role": role, "content": f"{role} {at}"}
        if role == "tool":
            call = {"id": f"c{at}", "function": {"name": "read", "arguments": "{}"}}
            messages[-1].setdefault("tool_calls", []).append(call)
            message["tool_call_id"] = f"c{at}"
        messages.append(message)
    sizes = [Size(tokens, 4 * (tokens - FRAME_TOKENS)) for _, tokens in script]
    return make_situation(
        conversation=converse(messages),
        sizes=Sizes(messages=sizes, environment=0),
        policy=policy,
        limits=_LIMITS,
        known=replace(CALIBRATED, calibration=Calibration(1.0, 3)),
        may_compact=policy.compaction.auto,
        may_digest=policy.compaction.auto,
    )


def show(played: Played) -> dict[str, Any]:
    assert played.last is not None
    return {
        "first": played.compacted[0] if played.compacted else None,
        "times": len(played.compacted),
        "calls": played.summaries,
        "left": played.messages,
        "marks": len(played.last.view.marks),
        "most": played.most_sent,
        "sent": played.last.sent,
    }


@rows("presets", "presets")
def test_a_preset_behaves_as_its_document_describes(row: Row, tmp_path: Path) -> None:
    policy = load_policy(tmp_path, {"preset": row["preset"]})
    assert show(play(policy, _SCRIPTS[row["script"]])) == row["is"]


def test_every_preset_has_its_rows() -> None:
    presets = sorted(path.stem for path in (find_config_folder() / "presets").glob("*.yaml"))
    found = {(row["script"], row["preset"]) for row in load_table("presets")["presets"]}
    assert found == {(script, preset) for script in _SCRIPTS for preset in presets}


@pytest.mark.system(9, 18)
@rows("presets", "changed")
def test_any_number_of_a_preset_may_be_changed_and_a_summary_may_fail(row: Row, tmp_path: Path) -> None:
    played = play(load_policy(tmp_path, row["policy"]), _SCRIPTS["prose"], fails=row.get("fails", False))
    assert played.compacted[0] == row["first"]
