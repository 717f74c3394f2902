import pickle
import time
from pathlib import Path

import pytest

from tests.store.directory import PLANT, fill, find_quarantined, opened, plant_file, run_sql


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("mode", [0, 1, 2, 3, 4, 5, "1"])
async def test_a_row_that_claims_to_be_a_pickle_is_never_unpickled(tmp_path: Path, mode: object) -> None:
    directory, fired = tmp_path / "store", tmp_path / "fired"
    await fill(directory, 1)
    bomb = pickle.dumps(Bomb(fired))
    (directory / "bomb.val").write_bytes(bomb)
    until = time.time() + 1_000
    run_sql(
        directory,
        (PLANT, ("head:bomb", 1, until, mode, None, bomb)),
        (PLANT, ("head:file", 1, until, mode, "bomb.val", None)),
        (PLANT, ("head:out", 1, until, mode, "../fired", None)),
        (PLANT, (bomb, 0, until, 1, None, b"")),
    )
    async with opened(directory) as store:
        assert await store.read("head:bomb") is None
        assert await store.read("head:file") is None
        assert [key for key, _ in await store.scan("")] == ["head:0"]
        await store.write_durably("head:bomb", b"fine", keep_seconds=60)
        assert await store.read("head:bomb") == b"fine"
        store.delete("head:file")
        await store.write_durably("head:out", b"fine", keep_seconds=60)
    assert not fired.exists()
    assert find_quarantined(directory) == []
    pickle.loads(bomb)  # noqa: S301  # the bomb is real
    assert fired.exists()


async def test_an_altered_record_is_absent_and_the_next_key_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "store"
    await fill(directory, 3)
    run_sql(
        directory,
        ("UPDATE Cache SET value = ? WHERE key = ?", (b"secret", "head:0")),
        (
            "UPDATE Cache SET value = (SELECT value FROM Cache WHERE key = 'head:2') WHERE key = ?",
            ("head:1",),
        ),
    )
    async with opened(directory) as store:
        found = await store.read_first(["head:0", "head:1", "head:2"])
    assert found is not None
    assert found[0] == "head:2"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "secret" not in caplog.text


async def test_a_record_whose_file_is_gone_is_absent(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    await fill(directory, 1)
    plant_file(directory, "head:x", b"from a file", time.time() + 60).unlink()
    async with opened(directory) as store:
        assert await store.read("head:x") is None
