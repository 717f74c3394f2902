"""What this machine gives a process."""

import resource
from pathlib import Path

from gateway.doctor.process import examine_process
from tests.builders.settings import load_text


def test_too_few_descriptors_for_the_connections(tmp_path: Path) -> None:
    found = list(examine_process(load_text(tmp_path, "bounds: {connections: 1000000000}\n")))
    assert found[0].level in ("warning", "ok")
    few = list(examine_process(load_text(tmp_path, "bounds: {connections: 1}\n")))
    assert [finding.level for finding in few] == ["ok", "ok"]
    assert "cores: " in few[1].what


def test_the_fix_names_the_number(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return
    found = list(examine_process(load_text(tmp_path, f"bounds: {{connections: {hard}}}\n")))
    assert f"LimitNOFILE={2 * hard + 256}" in (found[0].fix or "")
