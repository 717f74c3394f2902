"""Every subject is examined, and no key is shown."""

from pathlib import Path

from tests.toy.delivery import RawAnswer
from tests.toy.doctoring import NO_STORE, name_upstream, run_doctor, serving_models
from tests.toy.upstream import ToyUpstream

SUBJECTS = {"settings", "store", "upstream", "windows", "clock", "ports", "process", "exposure"}


async def test_every_subject_has_a_finding(tmp_path: Path) -> None:
    async with serving_models() as base_url:
        found = await run_doctor(tmp_path, NO_STORE + name_upstream(base_url))
    assert {finding.subject for finding in found} == SUBJECTS


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
