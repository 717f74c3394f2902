"""Settings that do not load, or are hardly meant."""

from pathlib import Path

from tests.toy.doctoring import NO_STORE, find_bad, name_upstream, run_doctor


async def test_each_mistake_has_its_line_and_nothing_else_is_examined(tmp_path: Path) -> None:
    text = NO_STORE + "upstreams: {up: {base_url: 'ftp://x', api_key: sk-a-secret}}\nretenton: {days: 3}\n"
    found = await run_doctor(tmp_path, text)
    assert {finding.subject for finding in found} == {"settings"} and len(found) == 2
    assert all("gateway.yaml:" in (finding.fix or "") for finding in found)
    assert "sk-a-secret" not in repr(found)


async def test_a_file_that_does_not_exist(tmp_path: Path) -> None:
    (found,) = await run_doctor(tmp_path, NO_STORE, "--config", str(tmp_path / "absent.yaml"))
    assert found.level == "problem" and "absent.yaml" in found.what


async def test_a_reference_to_an_absent_variable_names_it(tmp_path: Path) -> None:
    text = NO_STORE + name_upstream("http://127.0.0.1:9/v1", ", api_key: '${NO_SUCH_KEY}'")
    (found,) = find_bad(await run_doctor(tmp_path, text), "settings")
    assert "NO_SUCH_KEY" in found.what
