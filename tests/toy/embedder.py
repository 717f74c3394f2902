"""A server that gives texts vectors: one number for each meaning that it knows, and one for all others."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

_MEANINGS = (("car", "automobile", "vehicle"), ("dog", "hound"), ("money", "invoice", "payment"))


class ToyEmbedder:
    """answer: in place of vectors, as status and body. texts: that it was sent, in order."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answer: tuple[int, bytes] | None = None
        self.texts: list[str] = []
        self.keys: list[str | None] = []
        self.models: list[str] = []
        # Answers wait for it.
        self.released: asyncio.Event | None = None

    async def respond(self, request: web.Request) -> web.StreamResponse:
        asked = json.loads(await request.read())
        self.texts += asked["input"]
        self.models.append(asked["model"])
        self.keys.append(request.headers.get("authorization"))
        if self.released is not None:
            await self.released.wait()
        if self.answer is not None:
            return web.Response(status=self.answer[0], body=self.answer[1])
        data = [{"index": at, "embedding": embed(text)} for at, text in enumerate(asked["input"])]
        return web.json_response({"data": data[::-1], "model": asked["model"]})


def embed(text: str) -> list[float]:
    words = text.lower().split()
    return [*(float(sum(words.count(word) for word in some)) for some in _MEANINGS), 0.1]


@asynccontextmanager
async def serving_embedder() -> AsyncIterator[ToyEmbedder]:
    toy = ToyEmbedder("")
    app = web.Application()
    app.router.add_post("/v1/embeddings", toy.respond)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    toy.url = f"http://{host}:{port}/v1"
    try:
        yield toy
    finally:
        await runner.cleanup()
