"""Stores on disk that cannot be used, or should not."""

import asyncio
import json
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from gateway.store import open_store
from tests.hostile.process import run_command
from tests.toy.doctoring import (
    QUIET,
    find_bad,
    find_one,
    make_options,
    name_upstream,
    run_doctor,
    serving_models,
)

# Root may write everywhere, unless it gives that up.
AS_OTHERS = (
    ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")
    if os.geteuid() == 0
    else ()
)
# An upstream that nothing answers at; other findings do not matter here.
NOWHERE = name_upstream("http://127.0.0.1:9/v1")


def make_text(directory: Path) -> str:
    return f'{QUIET}store: "disk:{directory}"\n{NOWHERE}'


async def make_store(directory: Path) -> None:
    store = open_store(f"disk:{directory}")
    await store.open()
    store.write("key", b"value" * 1_000, keep_seconds=1_000)
    await store.close()


@contextmanager
def limited_files(size_bytes: int) -> Iterator[None]:
    """Files take no more, as where a quota is used up."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_good_store_is_ok_and_stays_as_it_is(tmp_path: Path) -> None:
    await make_store(tmp_path / "state")
    before = sorted((path.name, path.stat().st_size) for path in (tmp_path / "state").rglob("*"))
    assert find_bad(await run_doctor(tmp_path, make_text(tmp_path / "state")), "store") == []
    assert sorted((path.name, path.stat().st_size) for path in (tmp_path / "state").rglob("*")) == before


async def test_a_store_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    assert find_bad(await run_doctor(tmp_path, make_text(tmp_path / "new" / "state")), "store") == []
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(bool(AS_OTHERS) and shutil.which("setpriv") is None, reason="root may write everywhere")
async def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    await make_store(directory)
    options = make_options(tmp_path, make_text(directory))
    directory.chmod(0o500)
    words = ("doctor", "--json", "--config", options.config)
    ran = await asyncio.to_thread(partial(run_command, *words, cwd=tmp_path, before=AS_OTHERS))
    assert ran.returncode == 2, ran.stderr
    found = [finding for finding in json.loads(ran.stdout)["findings"] if finding["subject"] == "store"]
    assert [(finding["level"], finding["fix"]) for finding in found] == [
        ("problem", f"chmod u+rwx {directory}")
    ]


async def test_a_disk_whose_quota_is_used_up(tmp_path: Path) -> None:
    with limited_files(1 << 16):
        found = find_one(await run_doctor(tmp_path, make_text(tmp_path)), "store")
    assert found.level == "problem" and "takes no 1 MB" in found.what
    assert "raise the quota there" in (found.fix or "")


async def test_originals_that_fill_their_bound(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    await make_store(directory)
    await make_store(directory / "originals")
    text = make_text(directory) + "retention: {originals_bytes: 20000}\n"
    found = find_one(await run_doctor(tmp_path, text), "store")
    assert found.fix == "retention: {originals_bytes: 40000}"


async def test_a_damaged_store(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    await make_store(directory)
    database = directory / "cache.db"
    database.write_bytes(b"no database" * 1_000)
    found = find_one(await run_doctor(tmp_path, make_text(directory)), "store")
    assert found.level == "problem" and f"{database} is damaged" in found.what
    assert "from a backup or delete it" in (found.fix or "")
    assert database.read_bytes() == b"no database" * 1_000


async def test_what_was_set_aside_is_named(tmp_path: Path) -> None:
    await make_store(tmp_path / "state")
    aside = tmp_path / "state.damaged-20260101T000000Z"
    aside.mkdir()
    found = find_one(await run_doctor(tmp_path, make_text(tmp_path / "state")), "store")
    assert found.level == "warning" and (found.fix or "").startswith(f"rm -r {aside}")


async def test_a_folder_of_somebody_else(tmp_path: Path) -> None:
    directory = tmp_path / "home"
    directory.mkdir()
    (directory / "thesis.txt").write_text("mine")
    found = find_one(await run_doctor(tmp_path, make_text(directory)), "store")
    assert found.level == "problem" and f'"disk:{directory}/gateway"' in (found.fix or "")


async def test_a_file_in_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    assert (
        "is not a folder" in find_one(await run_doctor(tmp_path, make_text(tmp_path / "state")), "store").what
    )


async def test_a_store_that_others_can_read(tmp_path: Path) -> None:
    await make_store(tmp_path / "state")
    (tmp_path / "state").chmod(0o755)
    found = find_one(await run_doctor(tmp_path, make_text(tmp_path / "state")), "store")
    assert found.fix == f"chmod 700 {tmp_path / 'state'}"


async def test_a_store_in_use_is_not_a_fault(tmp_path: Path) -> None:
    store = open_store(f"disk:{tmp_path / 'state'}")
    await store.open()
    async with serving_models() as base_url:
        text = make_text(tmp_path / "state").replace("http://127.0.0.1:9/v1", base_url)
        found = await run_doctor(tmp_path, text)
    await store.close()
    assert find_bad(found, "store") == []
    assert any("a gateway is using" in finding.what for finding in found)
