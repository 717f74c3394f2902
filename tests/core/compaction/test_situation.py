from dataclasses import replace

from gateway.core.history.view import Size, View
from gateway.core.limits.model_limits import Limits
from gateway.core.sizing.estimate import Calibration, Sizes
from gateway.core.sizing.payload import MeasuredRequest
from tests.builders.compaction import make_situation, receive

_NOTHING = View(None, {})


def test_an_estimate_scales_our_count_by_the_calibration() -> None:
    situation = make_situation(receive(2))
    raw = situation.estimate(_NOTHING).tokens
    doubled = replace(situation, known=replace(situation.known, calibration=Calibration(2.0, 1)))
    assert doubled.estimate(_NOTHING).tokens == 2 * raw
    assert doubled.calibrated.ratio == 2.0


def test_bytes_and_pictures_count_in_one_estimate_and_not_in_the_other() -> None:
    situation = make_situation(receive(2))
    heavy = Sizes(messages=[Size(9_000, 10) for _ in situation.sizes.messages], environment=0)
    plain = MeasuredRequest(situation.sizes, situation.known, Limits())
    weighed = replace(situation, sizes=heavy, in_tokens=plain)
    assert weighed.estimate(_NOTHING).tokens == 9_000 * len(heavy.messages)
    assert weighed.estimate_tokens(_NOTHING) == situation.estimate(_NOTHING)
