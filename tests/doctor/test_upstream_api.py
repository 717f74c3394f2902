"""Upstreams that do not answer as they should: each finding names its fix."""

import ssl
from pathlib import Path

import httpx2 as httpx
import pytest

from gateway.doctor.upstream_api import examine_upstream
from gateway.settings import UpstreamSettings
from tests.builders.settings import load_text
from tests.toy.certificates import make_certificates, make_expired, make_self_signed
from tests.toy.delivery import RawAnswer
from tests.toy.doctoring import NO_STORE, find_bad, find_one, name_upstream, run_doctor, serving_models
from tests.toy.upstream import ToyUpstream

LIST = ("GET", "/v1/models")
KEY = "sk-a-secret-of-the-upstream"


def make_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def make_upstream(folder: Path, base_url: str) -> UpstreamSettings:
    return load_text(folder, name_upstream(base_url)).upstreams["up"]


async def test_a_good_upstream_is_ok(tmp_path: Path) -> None:
    async with serving_models(names=["a", "b"]) as base_url:
        found = await run_doctor(tmp_path, NO_STORE + name_upstream(base_url))
    assert find_bad(found, "upstream") == []
    assert any("lists 2 models, 2 with their windows" in finding.what for finding in found)


async def test_a_server_that_is_not_started(tmp_path: Path) -> None:
    async with serving_models() as base_url:
        pass
    found = find_one(await run_doctor(tmp_path, NO_STORE + name_upstream(base_url)), "upstream")
    assert "connection refused" in found.what
    assert found.fix == "start the server, or correct the port in upstreams.up.base_url"


async def test_a_name_that_does_not_exist(tmp_path: Path) -> None:
    text = NO_STORE + name_upstream("http://models.invalid/v1")
    found = find_one(await run_doctor(tmp_path, text), "upstream")
    assert "name not found" in found.what and "getent hosts models.invalid" in (found.fix or "")


async def test_a_certificate_that_nobody_has_signed(tmp_path: Path) -> None:
    async with serving_models(tls=make_tls(*make_self_signed(tmp_path))) as base_url:
        found = find_one(await run_doctor(tmp_path, NO_STORE + name_upstream(base_url)), "upstream")
    assert "certificate not accepted: self" in found.what and "update-ca-certificates" in (found.fix or "")


async def test_a_certificate_that_has_expired(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    trusting = ssl.create_default_context(cafile=str(certificates.ca))
    old = make_tls(*make_expired(tmp_path, certificates))
    async with serving_models(tls=old) as base_url, httpx.AsyncClient(verify=trusting) as client:
        report = await examine_upstream(client, make_upstream(tmp_path, base_url))
    (found,) = report.findings
    assert "expired" in found.what and "renew the certificate of 127.0.0.1" in (found.fix or "")
    assert not report.is_usable


async def test_plain_http_where_tls_is_expected(tmp_path: Path) -> None:
    async with serving_models() as base_url:
        text = NO_STORE + name_upstream(base_url.replace("http:", "https:"))
        found = find_one(await run_doctor(tmp_path, text), "upstream")
    assert found.fix is not None and found.fix.startswith(f"base_url: {base_url}")


@pytest.mark.parametrize("status", [401, 403])
async def test_a_key_that_is_refused(status: int, tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        toy.raw_answers[LIST] = RawAnswer(
            status=status, pieces=(b'{"error": "bad key ' + KEY.encode() + b'"}',)
        )
        found = await run_doctor(tmp_path, NO_STORE + name_upstream(toy.base_url, f", api_key: {KEY}"))
        callers = await run_doctor(tmp_path, NO_STORE + name_upstream(toy.base_url))
    bad = find_one(found, "upstream")
    assert f"refuses its api_key (status {status})" in bad.what and "upstreams.up.api_key: ${" in (
        bad.fix or ""
    )
    assert KEY not in repr(found)
    # Without a key of its own, each caller brings one.
    assert find_bad(callers, "upstream") == []


async def test_an_upstream_without_a_list_of_models(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        for path in ("/v1/models", "/models"):
            toy.raw_answers["GET", path] = RawAnswer(status=404, pieces=(b"{}",))
        found = find_one(await run_doctor(tmp_path, NO_STORE + name_upstream(toy.base_url)), "upstream")
    assert found.level == "warning" and "not a list of models (status 404)" in found.what
    assert found.fix is not None and found.fix.startswith('models: [{match: "NAME", upstream: up, context:')


async def test_a_base_url_without_its_version(tmp_path: Path) -> None:
    async with serving_models() as base_url:
        text = NO_STORE + name_upstream(base_url.removesuffix("/v1"))
        found = find_one(await run_doctor(tmp_path, text), "upstream")
    assert found.fix == f"base_url: {base_url}"


async def test_an_upstream_that_redirects(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        place = ("Location", "https://elsewhere.example/v1/models")
        toy.raw_answers[LIST] = RawAnswer(status=308, headers=(place,))
        found = find_one(await run_doctor(tmp_path, NO_STORE + name_upstream(toy.base_url)), "upstream")
    assert found.fix == "base_url: https://elsewhere.example/v1"


async def test_a_redirect_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        toy.raw_answers[LIST] = RawAnswer(status=302, headers=(("Location", "http://x/\u00e9\x7f"),))
        found = find_one(await run_doctor(tmp_path, NO_STORE + name_upstream(toy.base_url)), "upstream")
    assert (found.what + (found.fix or "")).isprintable() and (found.fix or "").isascii()


async def test_a_web_page_is_not_an_api(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        page = RawAnswer(headers=(("Content-Type", "text/html"),), pieces=(b"<html>",))
        for path in ("/v1/models", "/models"):
            toy.raw_answers["GET", path] = page
        found = find_one(await run_doctor(tmp_path, NO_STORE + name_upstream(toy.base_url)), "upstream")
    assert "web page" in found.what and found.fix == "correct upstreams.up.base_url"
