"""Each program finishes a task of more than three windows without an error, for few summaries (material.py).

`make test-agents`
"""

from pathlib import Path

import pytest

from tests.agents.client import Client
from tests.agents.clients import CLIENTS
from tests.agents.material import most_summaries
from tests.agents.trial import Row, require_client, run_trial

pytestmark = [pytest.mark.agents, pytest.mark.timeout(900)]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
async def test_it_ends_a_task_of_three_windows(client: Client, tmp_path: Path, rows: list[Row]) -> None:
    require_client(client)
    row = await run_trial(client, tmp_path)
    rows.append(row)
    told, counts = row.finished[-1].output[-2_000:], row.count_all()
    assert counts["status"] == 0, told
    assert row.list_missing_words() == [], told
    assert counts["floor"] * 2 <= client.window
    assert row.windows >= 3
    assert counts["summaries"] + counts["digests"] >= 2
    assert counts["digests"] == 0 or client.sends == "newest"
    assert counts["summary calls"] <= most_summaries(counts["fewest"])
    assert counts["by client"] == 0
    assert row.list_refusals() == []
    assert row.count_touched_side_calls() == 0
    assert row.list_forgotten() == []
