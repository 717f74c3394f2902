"""Who is calling? A credential in, a tenant out.

Credentials are compared and kept as SHA-256 only, and never logged.
"""

import hashlib
from dataclasses import dataclass

from multidict import CIMultiDictProxy

from gateway.core.errors import RequestRefused
from gateway.core.policy import Policy
from gateway.settings import Settings

_SEPARATOR = "\0"
# Of the hash that names a caller by its key: enough to tell callers apart, and nothing to find the key by.
_SHOWN_DIGITS = 12
_TENANT, _KEY = "tenant:", "key:"


@dataclass(frozen=True, slots=True)
class Tenant:
    """id: what state is kept under. upstream: the configured one, None for the first that fits."""

    id: str
    upstream: str | None
    policy: str

    @property
    def shown(self) -> str:
        """What operators see: the configured name, or the beginning of the key's hash."""
        if self.id.startswith(_KEY):
            return self.id[: len(_KEY) + _SHOWN_DIGITS]
        return self.id.removeprefix(_TENANT)


class Tenancy:
    def __init__(self, settings: Settings) -> None:
        self._known = {
            _digest(key.get_secret_value()): Tenant(f"{_TENANT}{tenant.name}", tenant.upstream, tenant.policy)
            for tenant in settings.tenants
            for key in tenant.keys
        }
        self._is_closed = bool(settings.tenants)

    def identify(self, headers: CIMultiDictProxy[str]) -> Tenant:
        """Raises RequestRefused (401) for a key that is nobody's, where tenants are configured.

        Without configured tenants every key is its own tenant; callers without one share one.
        """
        credentials = read_credentials(headers)
        known = self._known.get(_digest(credentials[0])) if credentials else None
        if known is not None:
            return known
        if self._is_closed:
            raise RequestRefused(
                401, "Incorrect API key provided.", kind="invalid_request_error", code="invalid_api_key"
            )
        # All of them together: two callers who share one of several keys stay apart.
        return Tenant(f"{_KEY}{_digest(_SEPARATOR.join(credentials))}", None, "default")


def read_credentials(headers: CIMultiDictProxy[str]) -> list[str]:
    """The caller's keys, wherever its API puts them, the one that counts first; none where it sends none."""
    bearer = headers.get("Authorization", "")
    scheme, _, token = bearer.partition(" ")
    found = [token.strip() if scheme.lower() == "bearer" else bearer]
    found += [headers.get(name, "") for name in ("x-api-key", "api-key", "x-goog-api-key")]
    return [credential for credential in found if credential]


def _digest(credential: str) -> str:
    return hashlib.sha256(credential.encode("utf-8", "surrogateescape")).hexdigest()


# JOINED: Which policy holds for a request: the tenant's, unless a rule for its model names another.

# Model names come from clients; emptied when it is full.
_MOST_REMEMBERED = 4_096


class Policies:
    def __init__(self, settings: Settings) -> None:
        self._policies = settings.policies
        self._rules = [rule for rule in settings.models if rule.policy is not None]
        self._known: dict[tuple[str, str, str], Policy] = {}

    def choose(self, tenant: Tenant, upstream: str, model: str) -> Policy:
        """The first rule that fits and names a policy. The same object for the same question."""
        if not self._rules:
            return self._policies[tenant.policy]
        key = tenant.policy, upstream, model
        found = self._known.get(key)
        if found is None:
            named = (rule.policy for rule in self._rules if rule.applies_to(model, upstream))
            found = self._policies[next(named, None) or tenant.policy]
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            self._known[key] = found
        return found
