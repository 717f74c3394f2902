"""Beside a hostile text nobody waits long, not even the operator for a list.

`python -m bench hostile` measures the same cases against the aim of 250 ms. Here the bound is one that a busy
machine keeps: what is meant took from four seconds to a minute.
"""

from pathlib import Path

import pytest

from bench.hostile_cases import Stage
from bench.hostile_texts import ALL_CASES, time_list
from bench.stall import StallMeter
from tests.hostile.process import linux_only, running_process
from tests.wire_through.raw import RawUpstream

pytestmark = linux_only
_MOST_SECONDS = 2.0
_SETTINGS = """
store: "memory:"
drain_seconds: 1
admin: {{port: 0}}
upstreams:
  default: {{base_url: "{base_url}", discover: false}}
models: [{{match: m, context: 100000}}]
"""


@pytest.mark.parametrize(
    "name",
    [
        "text-feedback",
        "text-opened-results",
        "text-written-calls",
        "text-edits",
        "members-request",
        "members-large",
        "members-answer",
    ],
)
async def test_nobody_waits_beside_a_hostile_text(name: str, tmp_path: Path) -> None:
    async with (
        RawUpstream() as upstream,
        running_process(_SETTINGS.format(base_url=upstream.base_url), tmp_path) as gateway,
    ):
        stage = Stage(gateway.port, upstream, gateway.admin_port)
        async with StallMeter(gateway.port) as meter:
            answers = await ALL_CASES[name].attack(stage)
            list_seconds = max([await time_list(stage) for _ in range(20)])
        assert answers.startswith("200")
        assert "Traceback" not in gateway.log
    assert meter.stall.lost == 0
    assert max(meter.stall.longest_seconds, list_seconds) < _MOST_SECONDS
