"""Redis servers that are away, refuse, or would lose records."""

from pathlib import Path

from tests.toy.doctoring import QUIET, find_bad, find_one, name_upstream, run_doctor
from tests.toy.redis_server import requires_redis, running_redis

NOWHERE = QUIET + name_upstream("http://127.0.0.1:9/v1")


async def test_a_server_that_is_away(tmp_path: Path) -> None:
    found = find_one(await run_doctor(tmp_path, NOWHERE + "store: redis://127.0.0.1:9/0\n"), "store")
    assert "connection refused" in found.what and "redis-cli -h 127.0.0.1 -p 9 ping" in (found.fix or "")


@requires_redis
async def test_a_good_server_tells_its_version(tmp_path: Path) -> None:
    async with running_redis() as server:
        found = await run_doctor(tmp_path, f"{NOWHERE}store: {server.url}\n")
    assert [each for each in find_bad(found, "store") if "timeout_ms" not in each.what] == []
    assert any("version" in finding.what for finding in found)


@requires_redis
async def test_a_wrong_password_is_not_shown(tmp_path: Path) -> None:
    async with running_redis(password="right-password") as server:
        url = server.url.replace("right-password", "wrong-password")
        findings = await run_doctor(tmp_path, f"{NOWHERE}store: {url}\n")
    assert "${REDIS_PASSWORD}" in (find_one(findings, "store").fix or "")
    assert "wrong-password" not in repr(findings)


@requires_redis
async def test_a_policy_that_evicts_what_is_in_use(tmp_path: Path) -> None:
    async with running_redis(options={"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}) as server:
        found = find_bad(await run_doctor(tmp_path, f"{NOWHERE}store: {server.url}\n"), "store")
    assert "redis-cli config set maxmemory-policy volatile-lru" in [each.fix for each in found]
