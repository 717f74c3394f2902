"""`refold doctor` on stores that cannot be used, or should not: each has its fix, and stays as it is."""

import asyncio
import json
import os
import resource
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from tests.surface.written import write
from tests.toy.agent import make_session
from tests.toy.diagnosis import QUIET, diagnose, name_upstream, serving_models
from tests.toy.house import make_settings
from tests.toy.product import run_command, serve
from tests.toy.redis_server import requires_redis, running_redis
from tests.toy.running import run_session
from tests.toy.upstream import ToyUpstream

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Root may write everywhere, unless it gives that up.
AS_OTHERS = (
    ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")
    if os.geteuid() == 0
    else ()
)
# An upstream that nothing answers at; other findings do not matter here.
NOWHERE = name_upstream("http://127.0.0.1:9/v1")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def filled(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    """The store of a gateway that has compacted and ended."""
    folder = tmp_path_factory.mktemp("filled") / "state"
    async with (
        ToyUpstream(window=16_000) as toy,
        serve(make_settings(toy, store=f"disk:{folder}")) as product,
    ):
        run = await run_session(make_session(30, 3), product.base_url, toy)
        await product.at_rest()
    assert run.summaries
    yield folder


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(filled, tmp_path / "state")
    return tmp_path / "state"


def make_text(directory: Path) -> str:
    return f'{QUIET}store: "disk:{directory}"\n{NOWHERE}'


def list_files(folder: Path) -> list[tuple[str, int]]:
    return sorted((path.name, path.stat().st_size) for path in folder.rglob("*"))


async def test_a_good_store_is_ok_and_stays_as_it_is(store: Path, tmp_path: Path) -> None:
    before = list_files(store)
    assert (await diagnose(tmp_path, make_text(store))).bad("store") == []
    assert list_files(store) == before


async def test_a_store_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    assert (await diagnose(tmp_path, make_text(tmp_path / "new" / "state"))).bad("store") == []
    assert not (tmp_path / "new").exists()


def damage(store: Path) -> None:
    (store / "state.db").write_bytes(b"no database" * 1_000)


def set_aside(store: Path) -> None:
    (store / "state.db.damaged-20260101-000000").touch()


def open_to_others(store: Path) -> None:
    store.chmod(0o755)


def fill_with_a_thesis(store: Path) -> None:
    shutil.rmtree(store)
    store.mkdir(mode=0o700)
    (store / "thesis.txt").write_text("mine")


def replace_by_a_file(store: Path) -> None:
    shutil.rmtree(store)
    store.write_text("")


_BROKEN: dict[str, tuple[Callable[[Path], None], str, str, str]] = {
    "a damaged store": (damage, "problem", "STORE/state.db is damaged", "from a backup or delete it"),
    "what was set aside": (set_aside, "warning", "", "rm -r STORE/state.db.damaged-20260101-000000"),
    "a store that others can read": (open_to_others, "warning", "", "chmod 700 STORE"),
    "a folder of somebody else": (fill_with_a_thesis, "problem", "", '"disk:STORE/gateway"'),
    "a file in place of a folder": (replace_by_a_file, "problem", "is not a folder", ""),
}


@pytest.mark.parametrize("name", _BROKEN)
async def test_a_broken_store_has_its_fix_and_is_not_touched(name: str, store: Path, tmp_path: Path) -> None:
    break_it, level, what, fix = _BROKEN[name]
    break_it(store)
    before = list_files(store)
    found = (await diagnose(tmp_path, make_text(store))).one("store")
    assert found.level == level
    assert what.replace("STORE", str(store)) in found.what and fix.replace("STORE", str(store)) in found.fix
    assert list_files(store) == before


@pytest.mark.skipif(bool(AS_OTHERS) and shutil.which("setpriv") is None, reason="root may write everywhere")
async def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    directory.mkdir(mode=0o700)
    path = write(tmp_path, make_text(directory))
    directory.chmod(0o500)
    words = ("doctor", "--json", "--config", path)
    ran = await asyncio.to_thread(partial(run_command, *words, cwd=tmp_path, before=AS_OTHERS))
    assert ran.status == 2, ran.err
    found = [finding for finding in json.loads(ran.out)["findings"] if finding["subject"] == "store"]
    assert [(finding["level"], finding["fix"]) for finding in found] == [
        ("problem", f"chmod u+rwx {directory}")
    ]


@contextmanager
def limited_files(size_bytes: int) -> Iterator[None]:
    """Files take no more, as where a quota is used up."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_disk_whose_quota_is_used_up(tmp_path: Path) -> None:
    with limited_files(1 << 16):
        found = (await diagnose(tmp_path, make_text(tmp_path / "new"))).one("store")
    assert found.level == "problem" and "takes no 1 MB" in found.what
    assert "raise the quota there" in found.fix


async def test_originals_that_fill_their_bound(store: Path, tmp_path: Path) -> None:
    text = make_text(store) + "retention: {originals_bytes: 20000}\n"
    assert (await diagnose(tmp_path, text)).one("store").fix == "retention: {originals_bytes: 40000}"


async def test_a_store_in_use_is_not_a_fault(tmp_path: Path) -> None:
    async with ToyUpstream() as toy, serving_models() as base_url:
        settings = make_settings(toy, store=f"disk:{tmp_path / 'state'}")
        async with serve(settings):
            text = make_text(tmp_path / "state").replace("http://127.0.0.1:9/v1", base_url)
            report = await diagnose(tmp_path, text)
    assert report.bad("store") == []
    assert any("a gateway is using" in each.what for each in report.about("store"))


async def test_a_redis_that_is_away(tmp_path: Path) -> None:
    text = f"{QUIET}{NOWHERE}store: redis://127.0.0.1:9/0\n"
    found = (await diagnose(tmp_path, text)).one("store")
    assert "connection refused" in found.what and "redis-cli -h 127.0.0.1 -p 9 ping" in found.fix


@requires_redis
async def test_a_good_redis_tells_its_version_and_one_that_evicts_gets_its_fix(tmp_path: Path) -> None:
    async with running_redis() as server:
        report = await diagnose(tmp_path, f"{QUIET}{NOWHERE}store: {server.url}\n")
    assert [each for each in report.bad("store") if "timeout_ms" not in each.what] == []
    assert any("version" in each.what for each in report.about("store"))
    async with running_redis(options={"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}) as server:
        report = await diagnose(tmp_path, f"{QUIET}{NOWHERE}store: {server.url}\n")
    fixes = [each.fix for each in report.bad("store")]
    assert "redis-cli config set maxmemory-policy volatile-lru" in fixes


@requires_redis
async def test_a_wrong_password_is_not_shown(tmp_path: Path) -> None:
    async with running_redis(password="right-password") as server:
        url = server.url.replace("right-password", "wrong-password")
        report = await diagnose(tmp_path, f"{QUIET}{NOWHERE}store: {url}\n")
    assert "${REDIS_PASSWORD}" in report.one("store").fix and "wrong-password" not in report.text
