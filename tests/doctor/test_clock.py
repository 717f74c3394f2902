"""The clock of this machine against those of upstreams."""

import time
from email.utils import formatdate
from pathlib import Path

import pytest

from gateway.doctor.clock import examine_clock
from tests.toy.doctoring import NO_STORE, find_one, name_upstream, run_doctor, serving_models

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("seconds", "level"), [(0, "ok"), (59, "ok"), (-59, "ok"), (61, "warning"), (-3_600, "warning")]
)
def test_a_minute_is_tolerated(seconds: int, level: str) -> None:
    (found,) = examine_clock({"up": formatdate(NOW + seconds, usegmt=True)}, NOW)
    assert found.level == level


async def test_a_clock_that_is_off_by_an_hour(tmp_path: Path) -> None:
    date = formatdate(time.time() + 3_600, usegmt=True)
    async with serving_models(headers={"Date": date}) as base_url:
        found = find_one(await run_doctor(tmp_path, NO_STORE + name_upstream(base_url)), "clock")
    assert (
        found.what == "this clock is 1.0 hours behind that of up" and found.fix == "timedatectl set-ntp true"
    )


def test_what_is_no_date_says_nothing() -> None:
    assert list(examine_clock({"up": "yesterday", "other": ""}, NOW)) == []


def test_one_upstream_with_a_wrong_clock_does_not_count() -> None:
    dates = {"a": formatdate(NOW + 9_999, usegmt=True), "b": formatdate(NOW, usegmt=True)}
    assert [found.level for found in examine_clock(dates, NOW)] == ["ok"]
