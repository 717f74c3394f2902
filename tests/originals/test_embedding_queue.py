"""The index with an embedder: what is found by meaning, and what happens without."""

import asyncio
from pathlib import Path

import pytest

from gateway.originals.index import OriginalsIndex
from gateway.originals.index_files import IndexFiles
from gateway.originals.search import Scope
from tests.builders.state import make_store
from tests.originals.test_index import _TAG, add, find, say
from tests.originals.test_index_files import _WIDE
from tests.originals.test_vectors import requires_extensions
from tests.toy.embedder import ToyEmbedder, serving_embedder

_TEXTS = ("the automobile is red", "a hound barks", "nothing of note")


async def open_search(toy: ToyEmbedder, client: object, folder: Path, model: str = "toy") -> OriginalsIndex:
    embedder = toy.connect(client, model)  # type: ignore[arg-type]
    return OriginalsIndex(await make_store(), IndexFiles(folder, _WIDE), 60, embedder=embedder)


def count_files(folder: Path) -> int:
    return len(list(folder.rglob("*.sqlite")))


def count_vectors(folder: Path) -> int:
    with IndexFiles(folder, _WIDE).reading(_TAG, "c") as index:
        assert index is not None
        (count,) = index.execute("SELECT count(*) FROM vectors").fetchone()
        return int(count)


@requires_extensions
async def test_what_means_the_same_is_found(tmp_path: Path) -> None:
    async with serving_embedder() as (toy, client):
        search = await open_search(toy, client, tmp_path)
        await add(search, say(*_TEXTS))
        await search.finish()
        assert (await find(search, "vehicle"))[0] == _TEXTS[0]
        assert (await find(search, "dog"))[0] == _TEXTS[1]
        assert await search.search(_TAG, [Scope("c", before=2)], "dog") != []
        await search.close()


async def test_each_piece_is_sent_once_and_a_changed_model_sends_all_again(tmp_path: Path) -> None:
    async with serving_embedder() as (toy, client):
        search = await open_search(toy, client, tmp_path)
        for _ in range(2):
            await add(search, say(*(f"text number {at}" for at in range(100))))
            await search.finish()
        assert len(toy.texts) == len(set(toy.texts)) == count_vectors(tmp_path) == 102
        await search.close()
        other = await open_search(toy, client, tmp_path, "other")
        await find(other, "number")
        await other.finish()
        assert count_vectors(tmp_path) == 102 and toy.models.count("other") >= 2
        await other.close()


@pytest.mark.parametrize("answer", [(500, b""), (200, b"{}")])
async def test_an_embedder_that_fails_leaves_the_search_by_words(
    tmp_path: Path, answer: tuple[int, bytes]
) -> None:
    async with serving_embedder() as (toy, client):
        toy.answer = answer
        search = await open_search(toy, client, tmp_path)
        await add(search, say(*_TEXTS))
        await search.finish()
        assert await find(search, "hound") == [_TEXTS[1]]
        assert await find(search, "dog") == []
        toy.answer = None
        await find(search, "dog")
        await search.finish()
        assert count_vectors(tmp_path) == 5
        await search.close()


async def test_forgotten_conversations_get_no_vectors(tmp_path: Path) -> None:
    async with serving_embedder() as (toy, client):
        search = await open_search(toy, client, tmp_path)
        await add(search, say(*_TEXTS))
        search.forget_conversation(_TAG, "c")
        await search.finish()
        assert list((tmp_path / _TAG).iterdir()) == []
        await search.close()


async def test_what_is_deleted_waits_for_no_embedder(tmp_path: Path) -> None:
    async with serving_embedder() as (toy, client):
        toy.released = asyncio.Event()
        search = await open_search(toy, client, tmp_path)
        await add(search, say(*_TEXTS))
        assert count_files(tmp_path) == 1
        search.forget(_TAG)
        await search.finish_deleting()
        assert count_files(tmp_path) == 0
        toy.released.set()
        await search.close()


async def test_a_search_by_words_alone_asks_no_embedder(tmp_path: Path) -> None:
    async with serving_embedder() as (toy, client):
        search = await open_search(toy, client, tmp_path)
        await add(search, say(*_TEXTS))
        await search.finish()
        toy.texts.clear()
        found = await search.search(_TAG, [Scope("c")], "hound", by_meaning=False)
        assert [piece.text for piece in found] == [_TEXTS[1]]
        assert toy.texts == []
        assert (await find(search, "hound"))[0] == _TEXTS[1]
        assert toy.texts == ["hound"]
        await search.close()
