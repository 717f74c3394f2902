"""An admin port that answers what a test says, and keeps what it was asked."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web


@dataclass
class ToyAdminPort:
    """answers: status and body, by method and path below /api/v1. asked: method, path with query, token."""

    answers: dict[tuple[str, str], tuple[int, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    port: int = 0

    def answer(self, method: str, path: str, value: object, status: int = 200) -> None:
        self.answers[method, path] = (status, json.dumps(value).encode())

    def write_settings(self, folder: Path, token: str = "") -> str:
        """The path of a settings file that names this port."""
        path = folder / "gateway.yaml"
        path.write_text(f"admin: {{port: {self.port}{f', token: {token}' if token else ''}}}\n")
        return str(path)

    async def serve(self, request: web.Request) -> web.Response:
        self.asked.append((request.method, request.path_qs, request.headers.get("Authorization", "")))
        self.bodies.append(await request.read())
        path = request.path.removeprefix("/api/v1")
        status, body = self.answers.get((request.method, path), (404, b'{"detail": "no such path"}'))
        headers: Mapping[str, str] = {"Content-Type": "application/json"}
        return web.Response(status=status, body=body, headers=headers)


@asynccontextmanager
async def serving_admin_port() -> AsyncIterator[ToyAdminPort]:
    toy = ToyAdminPort()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", toy.serve)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        toy.port = runner.addresses[0][1]
        yield toy
    finally:
        await runner.cleanup()
