"""A hook at the other end of a URL: one signed POST, a short answer, no redirect, no second try.

Signature: `x-gateway-signature: sha256=HEX`, HMAC-SHA256 with the secret over `x-gateway-timestamp`, a dot,
and the body.
"""

import asyncio
import hashlib
import hmac
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

import httpx2 as httpx
import msgspec

from gateway.core.errors import HookFailed
from gateway.headers import X_GATEWAY_SIGNATURE, X_GATEWAY_TIMESTAMP
from gateway.hooks import PreCompact, Say, SessionStart
from gateway.settings import HookTarget
from gateway.upstream.internal_client import CALL_ERRORS

_MOST_ANSWER_BYTES: Final = 1 << 16


class Webhook:
    """name: the host alone; a path may hold a secret."""

    def __init__(
        self, client: httpx.AsyncClient, target: HookTarget, clock: Callable[[], float] = time.time
    ) -> None:
        self.name = urlsplit(target.url).netloc
        self._client = client
        self._target = target
        self._clock = clock

    async def ask(self, before: PreCompact) -> Say:
        """An empty answer says nothing."""
        answer = await self._post(msgspec.json.encode(before))
        try:
            return msgspec.json.decode(answer, type=Say) if answer.strip() else Say()
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise HookFailed("answer not understood") from None

    async def tell(self, after: SessionStart) -> None:
        await self._post(msgspec.json.encode(after))

    async def _post(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json", **self._sign(body)}
        timeout_seconds = self._target.timeout_seconds
        try:
            async with (
                asyncio.timeout(timeout_seconds),
                self._client.stream(
                    "POST", self._target.url, content=body, headers=headers, timeout=timeout_seconds
                ) as response,
            ):
                if not 200 <= response.status_code < 300:
                    raise HookFailed(f"status {response.status_code}")
                return await _read_bounded(response)
        except CALL_ERRORS as error:
            # The kind only: an error of the client may quote the URL.
            raise HookFailed(type(error).__name__) from error

    def _sign(self, body: bytes) -> dict[str, str]:
        timestamp = str(int(self._clock()))
        headers = {X_GATEWAY_TIMESTAMP: timestamp}
        if self._target.secret is not None:
            key = self._target.secret.get_secret_value().encode()
            signature = hmac.new(key, f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
            headers[X_GATEWAY_SIGNATURE] = f"sha256={signature}"
        return headers


async def _read_bounded(response: httpx.Response) -> bytes:
    answer = b""
    async for chunk in response.aiter_bytes():
        answer += chunk
        if len(answer) > _MOST_ANSWER_BYTES:
            raise HookFailed("answer too long")
    return answer
