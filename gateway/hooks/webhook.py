"""A hook behind a URL: one signed POST, a short response, no redirects and no retry.

Signature: `x-gateway-signature: sha256=HEX`, HMAC-SHA256 with the secret over `x-gateway-timestamp`, a dot,
and the body.
"""

import hashlib
import hmac
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

import msgspec

from gateway.core.errors import HookFailed
from gateway.headers import X_GATEWAY_SIGNATURE, X_GATEWAY_TIMESTAMP
from gateway.hooks import HookReply, PreCompact, SessionStart
from gateway.http.client import Client, OwnCall
from gateway.http.failures import CALL_ERRORS, describe_failure
from gateway.settings import HookTarget
from gateway.wire.content_encoding import decode_body

_MAX_RESPONSE_BYTES: Final = 1 << 16


class Webhook:
    """name: the host alone, because the path may hold a secret."""

    def __init__(self, client: Client, target: HookTarget, clock: Callable[[], float] = time.time) -> None:
        self.name = urlsplit(target.url).netloc
        self._client = client
        self._target = target
        self._clock = clock

    async def ask(self, before: PreCompact) -> HookReply:
        """An empty response is an empty reply."""
        body = await self._post(msgspec.json.encode(before))
        try:
            return msgspec.json.decode(body, type=HookReply) if body.strip() else HookReply()
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise HookFailed("response not understood") from None

    async def tell(self, after: SessionStart) -> None:
        await self._post(msgspec.json.encode(after))

    async def _post(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json", **self._sign(body)}
        url = self._target.url
        call = OwnCall(None, "POST", url, headers.items(), body)
        try:
            found = await self._client.fetch(call, self._target.timeout_seconds, _MAX_RESPONSE_BYTES)
            if not 200 <= found.status < 300:
                raise HookFailed(f"status {found.status}")
            if found.body is None:
                raise HookFailed("response too long")
            # Not decoded by the library, which has no bound for what a few bytes decode to.
            return decode_body(found.body, found.headers.get("content-encoding", ""), _MAX_RESPONSE_BYTES)
        except CALL_ERRORS as error:
            raise HookFailed(describe_failure(error, url)) from error

    def _sign(self, body: bytes) -> dict[str, str]:
        timestamp = str(int(self._clock()))
        headers = {X_GATEWAY_TIMESTAMP: timestamp}
        if self._target.secret is not None:
            key = self._target.secret.get_secret_value().encode()
            signature = hmac.new(key, f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
            headers[X_GATEWAY_SIGNATURE] = f"sha256={signature}"
        return headers
