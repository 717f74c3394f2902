"""Who is calling? A credential in, a tenant out.

Credentials are compared and kept as SHA-256 only, and never logged.
"""

import hashlib
from dataclasses import dataclass

from multidict import CIMultiDictProxy

from gateway.core.errors import RequestRefused
from gateway.lru import Lru
from gateway.settings import Settings

_KEPT_BYTES = 1 << 20
_WEIGHT_BYTES = 300


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
        self._seen: Lru[str, Tenant] = Lru(_KEPT_BYTES)

    def identify(self, headers: CIMultiDictProxy[str]) -> Tenant:
        """Raises RequestRefused (401) for a key that is nobody's, where tenants are configured.

        Without configured tenants every key is its own tenant; callers without one share one.
        """
        credential = read_credential(headers)
        tenant = self._seen.get(credential)
        if tenant is None:
            tenant = self._identify(_digest(credential))
            self._seen.put(credential, tenant, _WEIGHT_BYTES + len(credential))
        return tenant

    def _identify(self, digest: str) -> Tenant:
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
