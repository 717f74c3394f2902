"""Who is calling? A credential in, a tenant out.

Credentials are compared and kept as SHA-256 only, and never logged.
"""

import hashlib
from dataclasses import dataclass

from multidict import CIMultiDictProxy

from gateway.core.errors import RequestRefused
from gateway.settings import Settings


@dataclass(frozen=True, slots=True)
class Tenant:
    """id: what state is kept under. upstream: the configured one, None for the first that fits."""

    id: str
    upstream: str | None
    policy: str


class Tenancy:
    def __init__(self, settings: Settings) -> None:
        self._known = {
            _digest(key.get_secret_value()): Tenant(f"tenant:{tenant.name}", tenant.upstream, tenant.policy)
            for tenant in settings.tenants
            for key in tenant.keys
        }
        self._is_closed = bool(settings.tenants)

    def identify(self, headers: CIMultiDictProxy[str]) -> Tenant:
        """Raises RequestRefused (401) for a key that is nobody's, where tenants are configured.

        Without configured tenants every key is its own tenant; callers without one share one.
        """
        digest = _digest(read_credential(headers))
        known = self._known.get(digest)
        if known is not None:
            return known
        if self._is_closed:
            raise RequestRefused(
                401, "Incorrect API key provided.", kind="invalid_request_error", code="invalid_api_key"
            )
        return Tenant(f"key:{digest}", None, "default")


def read_credential(headers: CIMultiDictProxy[str]) -> str:
    """The caller's key, wherever its API puts it; empty where there is none."""
    bearer = headers.get("Authorization")
    if bearer is not None:
        scheme, _, token = bearer.partition(" ")
        return token.strip() if scheme.lower() == "bearer" else bearer
    return headers.get("x-api-key") or headers.get("api-key") or ""


def _digest(credential: str) -> str:
    return hashlib.sha256(credential.encode("utf-8", "surrogateescape")).hexdigest()
