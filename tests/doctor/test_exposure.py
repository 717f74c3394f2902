"""Who can reach the ports."""

from pathlib import Path

from gateway.doctor.exposure import examine_exposure
from gateway.doctor.finding import Diagnosis
from tests.builders.settings import KEYED, PLAIN, TENANT, load_text


def examine(folder: Path, text: str) -> list[Diagnosis]:
    return list(examine_exposure(load_text(folder, text)))


def test_a_port_that_everybody_can_use(tmp_path: Path) -> None:
    first, _ = examine(tmp_path, PLAIN + "listen: {host: 0.0.0.0}\n")
    assert first.level == "warning" and (first.fix or "").startswith("listen: {host: 127.0.0.1}")


def test_a_short_token(tmp_path: Path) -> None:
    findings = examine(tmp_path, PLAIN + "admin: {token: hunter2}\n")
    assert findings[1].level == "warning" and "openssl rand -hex 32" in (findings[1].fix or "")
    assert "hunter2" not in repr(findings)


def test_texts_that_are_shown_without_a_token(tmp_path: Path) -> None:
    policies = "policies: {default: {}, open: {show_texts: true}, bare: {show_texts: true}}\n"
    _, found = examine(tmp_path, PLAIN + TENANT + policies)
    assert found.level == "warning" and "by policy open, bare" in found.what


def test_texts_that_are_shown_on_this_machine_only(tmp_path: Path) -> None:
    _, found = examine(tmp_path, PLAIN)
    assert found.level == "ok" and "it shows texts of conversations on this machine" in found.what
    _, hidden = examine(tmp_path, PLAIN + "policies: {default: {show_texts: false}}\n")
    assert hidden.level == "ok" and "it shows no texts" in hidden.what


def test_a_key_that_travels_unencrypted(tmp_path: Path) -> None:
    findings = examine(tmp_path, KEYED.replace("https:", "http:") + TENANT)
    assert [finding.fix for finding in findings if finding.level != "ok"] == [
        "base_url: https://x.example/v1"
    ]


def test_what_is_closed_is_well(tmp_path: Path) -> None:
    token = "admin: {token: 0123456789abcdef0123}\n"
    assert {finding.level for finding in examine(tmp_path, KEYED + TENANT + token)} == {"ok"}
