"""Every subject is examined, and no key is shown."""

from pathlib import Path

from tests.toy.agent import make_session
from tests.toy.delivery import RawAnswer
from tests.toy.doctoring import NO_STORE, find_one, name_upstream, run_doctor, serving_models
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.running import run_session
from tests.toy.upstream import ToyUpstream

SUBJECTS = {"settings", "store", "search", "upstream", "windows", "clock", "ports", "process", "exposure"}


async def test_every_subject_has_a_finding(tmp_path: Path) -> None:
    async with serving_models() as base_url:
        found = await run_doctor(tmp_path, NO_STORE + name_upstream(base_url))
    assert {finding.subject for finding in found} == SUBJECTS


async def test_models_that_conversations_use_are_looked_up(tmp_path: Path) -> None:
    more = "admin: {port: 0}\n"
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        await run_session(make_session(1, 1, "one_user", 100), gateway.base_url, toy)
        ports = f"listen: {{port: 0}}\nadmin: {{port: {gateway.admin_port}}}\nstore: 'memory:'\n"
        upstream = name_upstream("http://127.0.0.1:9/v1", ", discover: false")
        found = await run_doctor(tmp_path, ports + upstream)
    assert 'match: "toy-model"' in (find_one(found, "windows").fix or "")


async def test_a_key_is_in_no_finding_even_if_the_upstream_repeats_it(tmp_path: Path) -> None:
    key = "sk-repeat-after-me-0123456789"
    async with ToyUpstream() as toy:
        place = (("Location", f"/login?key={key}"), ("Content-Type", "application/json"))
        toy.intercept = lambda seen: RawAnswer(status=400, headers=place, pieces=(key.encode(),))
        found = await run_doctor(
            tmp_path, NO_STORE + name_upstream(toy.base_url, f", api_key: {key}"), "--ask", "m"
        )
        assert toy.requests
    assert key not in repr(found)
