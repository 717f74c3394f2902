"""How far the estimates are from what upstreams counted; `python -m bench estimates` prints all of it."""

from collections.abc import AsyncIterator
from statistics import median

import pytest

from gateway.bounds.lanes import Lanes
from gateway.planning.message_sizes import Sizer
from gateway.planning.tokenizer import Tokenizer, count_by_length
from tests.shared_data import requires_shared
from tests.toy.increments import (
    calibrated_errors,
    find_increments,
    load_recordings,
    make_recordings,
    plain_errors,
)


@pytest.fixture
async def sizer() -> AsyncIterator[Sizer]:
    lanes = Lanes()
    yield Sizer({"tiktoken": Tokenizer().count, "chars": count_by_length}, 1 << 26, lanes)
    lanes.close()


async def test_steps_of_generated_sessions_are_estimated_well(sizer: Sizer) -> None:
    steps = await find_increments(make_recordings(), sizer, "tiktoken")
    assert len(steps) > 150
    assert median(plain_errors(steps)) <= 0.2
    assert median(calibrated_errors(steps)) <= 0.1


@pytest.mark.system(18)
@requires_shared
async def test_steps_of_recorded_sessions_are_estimated_well(sizer: Sizer) -> None:
    steps = await find_increments(load_recordings(), sizer, "tiktoken")
    bodies = [step for step in steps if step.is_complete]
    assert len(bodies) == 6
    assert median(plain_errors(bodies)) <= 0.2
    sessions = [step for step in steps if not step.is_complete]
    assert len(calibrated_errors(sessions)) > 150
    assert median(plain_errors(sessions)) <= 0.2
    assert median(calibrated_errors(sessions)) <= 0.1


@requires_shared
async def test_four_characters_to_a_token_need_the_calibration(sizer: Sizer) -> None:
    steps = await find_increments(load_recordings(), sizer, "chars")
    assert median(plain_errors(steps)) > 0.2
    assert median(calibrated_errors(steps)) <= 0.12
