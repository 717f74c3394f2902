"""What each preset does with the same conversations, calculated by hand from the source documents."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Policy
from gateway.settings import load_settings
from gateway.settings.presets import find_config_folder
from tests.conftest import Note
from tests.decisions.scripts import Compacted, Played, Script, make_prose, make_talk, play

PRESETS = sorted(path.stem for path in (find_config_folder() / "presets").glob("*.yaml"))


LIMITS = Limits(context=100_000, output=8_000)


# prose: request k has 100 + 2,000 k tokens, with its reply 2,000 (k + 1). There are 60 turns.
# talk: turn k begins at 5,000 (k - 1) + 100 and has 5,000 k - 100 with its result. 24 turns and a question.
SCRIPTS: dict[str, Callable[[], Script]] = {
    "prose": lambda: make_prose(60),
    "talk": lambda: make_talk(24, result=4_700),
}


_HEADING = f"{'':6}{'preset':18}{'first compaction':18}" + "".join(
    f"{name:>8}" for name in ("times", "calls", "left", "marks", "most", "sent")
)


class Row(NamedTuple):
    # The size that triggered the first compaction, and the messages that it kept.
    first: Compacted | None
    # The number of compactions.
    times: int
    # The number of summaries requested from a model.
    calls: int
    # The messages of the last request, without inserted ones.
    messages: int
    # The placeholders or cut results of the last request.
    placeholders: int
    # The tokens of the largest request.
    most: int
    # The tokens of the last request.
    sent: int


def at(tokens: int, kept: int) -> Compacted:
    return Compacted(at=tokens, kept=kept)


EXPECTED: dict[tuple[str, str], Row] = {
    # usable = 100,000 - 8,000. With reply 45 it is exactly 92,000, which is not above. Request 46 is, before
    # it is sent. Only the open group stays (the question): 1,000 + 100, and 14 turns more.
    ("prose", "opencode"): Row(at(92_100, 1), 1, 1, 29, 0, 90_100, 29_100),
    # The threshold itself counts as full, which reply 45 reaches. The question stays; its reply and 15 turns
    # follow.
    ("prose", "opencode-current"): Row(at(92_000, 1), 1, 1, 31, 0, 90_100, 31_100),
    ("prose", "rfc007"): Row(at(92_100, 1), 1, 1, 29, 0, 90_100, 29_100),
    # 90 %: reply 44 makes exactly 90,000, request 45 is above. Ten messages are 10,000, and 15 turns follow.
    ("prose", "recent"): Row(at(90_100, 10), 1, 1, 40, 0, 88_100, 41_000),
    # 80 % less 16,384 is 63,616, exceeded by reply 31. 40 messages are the 40,000 of 40 %. Request 32 has
    # 43,000 and each turn adds 2,000: with replies 42 and 53 it is 64,900. After request 54 (43,000) six
    # turns follow.
    ("prose", "utilization"): Row(at(64_000, 40), 3, 3, 54, 0, 63_000, 55_000),
    # hard 64,000 (36,000 below the window), soft 5,000 less, exceeded by reply 29. The tail of 9,600 has
    # 5,600 left when 4,000 more are expected: five messages. Applied at request 32: 100 + 1,000 + 10,100.
    # Reply 55 makes 59,100; the tail has 4,700: five. Applied at request 59: 13,200.
    ("prose", "adaptive"): Row(at(60_000, 5), 2, 2, 15, 0, 63_200, 15_200),
    # hard 64,000: request 32. Fifty messages (50,000) leave no room to grow; the target of 32,050, less
    # opening and note, has room for 31 (30,100): 30,250. Reply 48 makes 64,150; request 49 has 32,250.
    ("prose", "rolling"): Row(at(64_100, 31), 2, 0, 55, 0, 62_250, 54_250),
    # Without anything to prune and without summaries it overflows.
    ("prose", "prune_only"): Row(None, 0, 0, 121, 0, 120_100, 120_100),
    # Results count 4,696. The newest eight (37,568) are protected, the ninth passes 40,000; two user turns
    # and what follows them are skipped. Five make 23,480 > 20,000: at turns 15, 20 and 25, five each.
    ("talk", "opencode"): Row(None, 0, 0, 97, 15, 73_060, 120_100 - 15 * 4_684),
    ("talk", "opencode-current"): Row(None, 0, 0, 97, 15, 73_060, 120_100 - 15 * 4_684),
    # A turn counts 4 x 4 less, 4,984. The new question and eight turns are 39,968, the reply before them
    # passes 40,000: the ninth result is the first to go. Five of them at turns 14, 19 and 24.
    ("talk", "rfc007"): Row(None, 0, 0, 97, 15, 68_060, 120_100 - 15 * 4_684),
    # Turn 18 ends at exactly 90,000; the next question is above. Ten messages: it, two turns and a reply.
    ("talk", "recent"): Row(at(90_100, 10), 1, 1, 34, 0, 89_900, 41_200),
    # Results before the newest ten messages are cut to 200 characters: 50 tokens and the note's 16. A pair
    # saves more than a tenth of the hard threshold (7,861): at turns 5, 7 … 25, eleven pairs. No threshold is
    # ever reached.
    ("talk", "utilization"): Row(None, 0, 0, 97, 22, 27_220, 120_100 - 22 * 4_634),
    # soft 59,000: the result of turn 12 (59,900). Four results of 4,700 stay below the 19,200 that are
    # protected, the seven before them go: 27,112. Then at turn 19 (62,112) seven more.
    ("talk", "adaptive"): Row(None, 0, 0, 97, 14, 57_312, 120_100 - 14 * 4_684),
    ("talk", "prune_only"): Row(None, 0, 0, 97, 14, 57_312, 120_100 - 14 * 4_684),
    # The result of turn 13 (64,900); the target has room for 24 messages: 100 + 50 + 30,000. Again with the
    # result of turn 20 (65,150), and five questions later 50,350.
    ("talk", "rolling"): Row(at(64_900, 24), 2, 0, 42, 0, 60_350, 50_350),
}


def load_preset(folder: Path, preset: str, keys: str = "") -> Policy:
    path = folder / "gateway.yaml"
    path.write_text(f"policies: {{p: {{preset: {preset}{keys}}}}}\n", "utf-8")
    return load_settings(path, {}).policies["p"]


def make_row(played: Played) -> Row:
    return Row(
        first=played.compacted[0] if played.compacted else None,
        times=len(played.compacted),
        calls=played.summaries,
        messages=played.messages,
        placeholders=played.placeholders,
        most=played.most_sent,
        sent=played.sent,
    )


def test_every_preset_has_its_rows() -> None:
    assert EXPECTED.keys() == {(script, preset) for script in SCRIPTS for preset in PRESETS}


@pytest.mark.system(1, 6, 10, 11, 12, 17, 19)
@pytest.mark.parametrize(("script", "preset"), EXPECTED)
def test_a_preset_behaves_as_its_document_describes(
    script: str, preset: str, tmp_path: Path, note_row: Note
) -> None:
    row = make_row(play(load_preset(tmp_path, preset), LIMITS, SCRIPTS[script]()))
    note_row(_HEADING, f"{script:6}{preset:18}{_render(row)}")
    assert row == EXPECTED[script, preset]


def _render(row: Row) -> str:
    first = f"{row.first.at} -> {row.first.kept} kept" if row.first else "-"
    return f"{first:18}" + "".join(f"{value:8}" for value in row[1:])


@pytest.mark.system(18)
def test_without_summaries_utilization_uses_a_digest_at_its_hard_threshold(tmp_path: Path) -> None:
    """95 % less 16,384 is 78,616: request 40. Other presets continue as long as the window holds the
    conversation.
    """
    script = SCRIPTS["prose"]()
    digested = play(load_preset(tmp_path, "utilization"), LIMITS, script, fails=True)
    assert (digested.compacted[0], digested.summaries) == (at(80_100, 40), 0)
    patient = play(load_preset(tmp_path, "opencode"), LIMITS, script, fails=True)
    # 98,100 and the smallest reply of 1,024 fit, 100,100 do not.
    assert (patient.compacted[0], patient.most_sent) == (at(100_100, 1), 98_100)


@pytest.mark.system(9)
@pytest.mark.parametrize(
    ("preset", "keys", "row"),
    [
        ("recent", ", keep: {tail_messages: 20}", at(90_100, 20)),
        ("recent", ", trigger: {hard_ratio: 0.5, soft_ratio: 0.5}", at(50_100, 10)),
        ("opencode", ", trigger: {output_cap: 4000}", at(96_100, 1)),
        ("utilization", ", keep: {tail_window: 0.2}", at(64_000, 20)),
        ("rolling", ", keep: {tail_messages: 8}", at(64_100, 8)),
        # 10,000 tokens, at most the whole hard threshold: five turns.
        ("rolling", ", keep: {tail_messages: 0, tail_tokens: 10000, tail_ratio: 1.0}", at(64_100, 10)),
    ],
)
def test_any_number_of_a_preset_may_be_changed(
    preset: str, keys: str, row: Compacted, tmp_path: Path
) -> None:
    assert play(load_preset(tmp_path, preset, keys), LIMITS, SCRIPTS["prose"]()).compacted[0] == row
