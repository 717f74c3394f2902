"""Each program finishes a task of more than three windows without an error, for few summaries (material.py).

`make test-agents`
"""

import shutil
from pathlib import Path

import pytest

from tests.agents.client import Client
from tests.agents.clients import CLIENTS
from tests.agents.material import most_summaries
from tests.agents.trial import Row, run_trial

pytestmark = [pytest.mark.agents, pytest.mark.timeout(900)]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
async def test_it_ends_a_task_of_three_windows(client: Client, tmp_path: Path, rows: list[Row]) -> None:
    _skip_what_cannot_run(client)
    assert client.program.exists(), f"{client.package} is not installed; see what `make install-agents` says"
    row = await run_trial(client, tmp_path)
    rows.append(row)
    told = row.finished[-1].output[-2_000:]
    assert row.status == 0, told
    assert row.missing_words == (), told
    assert row.floor_tokens * 2 <= client.window
    assert row.windows >= 3
    assert row.compactions >= 2
    assert row.digests == 0 or client.sends == "newest"
    assert row.summary_calls <= most_summaries(row.fewest_summaries)
    assert row.client_compactions == 0
    assert row.refused == ()
    assert row.touched_side_calls == 0
    assert row.forgotten == ()


def _skip_what_cannot_run(client: Client) -> None:
    if client.needs_npm and shutil.which("npm") is None:
        pytest.skip(f"{client.name} comes from npm, and npm is missing")
