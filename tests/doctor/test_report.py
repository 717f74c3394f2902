"""What `refold doctor` prints, and its exit status."""

import asyncio
import json
from functools import partial
from io import StringIO
from pathlib import Path

from rich.console import Console

from gateway.doctor.finding import blame, note_ok
from gateway.doctor.report import show_findings
from tests.hostile.process import run_command
from tests.toy.doctoring import NO_STORE, make_options, name_upstream, serving_models


def test_findings_fit_80_columns_and_are_never_markup() -> None:
    stream = StringIO()
    what = "a [bold]word[/bold] " * 12
    show_findings(Console(file=stream, width=80), [note_ok("store", what), blame("ports", "taken", "x" * 90)])
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 80 and "[bold]word[/bold]" in stream.getvalue()
    assert lines[-1] == "problems: 1, warnings: 0"


async def test_programs_get_one_json_value_and_the_status(tmp_path: Path) -> None:
    async with serving_models() as base_url:
        good = make_options(
            tmp_path, NO_STORE + name_upstream(base_url) + "models: [{match: toy-1, context: 9000}]\n"
        )
        run = partial(run_command, "doctor", "--config", good.config, cwd=tmp_path)
        ran = await asyncio.to_thread(
            partial(run_command, "doctor", "--config", good.config, "--json", cwd=tmp_path)
        )
        report = json.loads(ran.stdout)
        assert (ran.returncode, report["level"], ran.stderr) == (0, "ok", ""), report
        shown = await asyncio.to_thread(run)
    assert shown.returncode == 0 and "All is well." in shown.stdout and "\x1b" not in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    bad = await asyncio.to_thread(run)
    assert bad.returncode == 2 and "connection refused" in " ".join(bad.stdout.split())
