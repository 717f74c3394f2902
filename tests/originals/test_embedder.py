from array import array

import pytest

from gateway.upstream.internal_client import open_client
from tests.toy.embedder import ToyEmbedder, embed, serving_embedder


async def test_vectors_come_in_the_order_of_the_texts_with_the_upstreams_key() -> None:
    async with serving_embedder() as (toy, client):
        vectors = await toy.connect(client).embed(["a dog", "a car", "日本"], 5.0)
        assert vectors == [array("f", embed(text)).tobytes() for text in ("a dog", "a car", "日本")]
        assert (toy.texts, toy.models, toy.keys) == (["a dog", "a car", "日本"], ["toy"], ["Bearer sk-up"])


@pytest.mark.parametrize(
    "answer",
    [
        (500, b"{}"),
        (401, b'{"data": []}'),
        (200, b"no json"),
        (200, b'{"data": []}'),
        (200, b'{"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]}'),
        (200, b'{"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1, 2]}]}'),
        (200, b'{"data": [{"index": 0, "embedding": []}, {"index": 1, "embedding": []}]}'),
        (200, b'{"data": [{"index": 0, "embedding": [1e99]}, {"index": 1, "embedding": [1]}]}'),
        (200, b'{"data": [{"index": 0, "embedding": ["x"]}, {"index": 1, "embedding": [1]}]}'),
    ],
)
async def test_an_answer_without_the_vectors_is_none_and_logged_once(
    answer: tuple[int, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving_embedder() as (toy, client):
        toy.answer = answer
        embedder = toy.connect(client)
        assert await embedder.embed(["secret a", "secret b"], 5.0) is None
        assert await embedder.embed(["secret a", "secret b"], 5.0) is None
        assert caplog.text.count("no embeddings") == 1 and "secret" not in caplog.text


async def test_an_upstream_that_trickles_is_not_waited_for() -> None:
    async with serving_embedder() as (toy, client):
        toy.trickles = True
        assert await toy.connect(client).embed(["a"], 0.3) is None


async def test_an_upstream_that_is_not_there_is_none() -> None:
    async with open_client() as client:
        assert await ToyEmbedder("http://127.0.0.1:1/v1").connect(client).embed(["a"], 5.0) is None
