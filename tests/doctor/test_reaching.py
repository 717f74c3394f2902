"""One request to an upstream, and what is said if nothing answers."""

from pathlib import Path

from gateway.doctor.finding import Diagnosis
from gateway.doctor.reaching import Probe, ProbeResponse, send_probe
from gateway.upstream.internal_client import open_client
from gateway.wire.model_list import MAX_BYTES
from tests.builders.settings import load_text
from tests.toy.delivery import Delivery, RawAnswer
from tests.toy.doctoring import name_upstream
from tests.toy.upstream import ToyUpstream


async def send(folder: Path, toy: ToyUpstream) -> ProbeResponse | Diagnosis:
    upstream = load_text(folder, name_upstream(toy.base_url)).upstreams["up"]
    async with open_client() as client:
        probe = Probe(upstream=upstream, method="GET", url=f"{toy.base_url}/models", headers=[(b"X-A", b"b")])
        return await send_probe(client, probe)


async def test_a_response_comes_back_whole(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        toy.raw_answers["GET", "/v1/models"] = RawAnswer(status=418, pieces=(b"tea",))
        found = await send(tmp_path, toy)
        assert ("X-A", "b") in toy.requests[0].headers
    assert isinstance(found, ProbeResponse) and (found.status, found.body) == (418, b"tea")


async def test_a_body_without_an_end_is_not_read(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        toy.raw_answers["GET", "/v1/models"] = RawAnswer(pieces=(b"x" * (MAX_BYTES + 1),))
        found = await send(tmp_path, toy)
    assert isinstance(found, ProbeResponse) and found.body == b""


async def test_a_connection_that_is_closed_is_a_finding_with_a_fix(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        answer = RawAnswer(pieces=(b"x" * 100,), delivery=Delivery(stop_after_bytes=10, ending="abort"))
        toy.raw_answers["GET", "/v1/models"] = answer
        found = await send(tmp_path, toy)
    assert isinstance(found, Diagnosis) and found.level == "problem"
    assert "curl -v" in (found.fix or "")
