"""Which tenant sends a request, and which policy holds for it.

Credentials are compared and kept as SHA-256 hashes only, and never logged.
"""

import hashlib
from dataclasses import dataclass

from multidict import CIMultiDictProxy

from gateway.core.errors import RequestRefused
from gateway.core.policy import Policy
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.settings import Settings

_SEPARATOR = "\0"
# Operators see this many digits of a key's hash: enough to tell callers apart, too few to find the key.
_DISPLAYED_DIGITS = 12
_TENANT, _KEY = "tenant:", "key:"
# Model names come from clients, so the choices remembered for them are bounded: this holds some 4,000.
_CHOICES_BYTES = 1 << 20
_CHOICE_WEIGHT_BYTES = ENTRY_WEIGHT_BYTES + 100


@dataclass(frozen=True, slots=True)
class Tenant:
    """id: state is kept under it. upstream: the configured one; None means the first that fits."""

    id: str
    upstream: str | None
    policy: str

    @property
    def display_name(self) -> str:
        """For operators: the configured name, or the beginning of the key's hash."""
        if self.id.startswith(_KEY):
            return self.id[: len(_KEY) + _DISPLAYED_DIGITS]
        return self.id.removeprefix(_TENANT)


class Tenancy:
    def __init__(self, settings: Settings) -> None:
        self._by_fingerprint = {
            _fingerprint(key.get_secret_value()): Tenant(
                f"{_TENANT}{tenant.name}", tenant.upstream, tenant.policy
            )
            for tenant in settings.tenants
            for key in tenant.keys
        }
        self._is_closed = bool(settings.tenants)

    def identify(self, headers: CIMultiDictProxy[str]) -> Tenant:
        """Raises RequestRefused (401) for an unknown key if tenants are configured.

        Without configured tenants each key is its own tenant; callers without a key share one tenant.
        """
        credentials = read_credentials(headers)
        configured = self._by_fingerprint.get(_fingerprint(credentials[0])) if credentials else None
        if configured is not None:
            return configured
        if self._is_closed:
            raise RequestRefused(
                401, "Incorrect API key provided.", kind="invalid_request_error", code="invalid_api_key"
            )
        # All credentials count: two callers that share only one of several keys stay apart.
        return Tenant(f"{_KEY}{_fingerprint(_SEPARATOR.join(credentials))}", None, "default")


class Policies:
    """Chooses the policy of a request: the tenant's, unless a rule for its model names another."""

    def __init__(self, settings: Settings) -> None:
        self._policies = settings.policies
        self._rules = [rule for rule in settings.models if rule.policy is not None]
        self._choices: Lru[tuple[str, str, str], Policy] = Lru(_CHOICES_BYTES)

    def choose(self, tenant: Tenant, upstream: str, model: str) -> Policy:
        """The policy of the first rule that fits and names one. Equal arguments give the same object."""
        if not self._rules:
            return self._policies[tenant.policy]
        key = tenant.policy, upstream, model
        policy = self._choices.get(key)
        if policy is None:
            named = (rule.policy for rule in self._rules if rule.applies_to(model, upstream))
            policy = self._policies[next(named, None) or tenant.policy]
            self._choices.put(key, policy, _CHOICE_WEIGHT_BYTES + weigh_texts(model))
        return policy


def read_credentials(headers: CIMultiDictProxy[str]) -> list[str]:
    """The caller's keys from every header in which an API takes one. The first identifies the caller."""
    bearer = headers.get("Authorization", "")
    scheme, _, token = bearer.partition(" ")
    found = [token.strip() if scheme.lower() == "bearer" else bearer]
    found += [headers.get(name, "") for name in ("x-api-key", "api-key", "x-goog-api-key")]
    return [credential for credential in found if credential]


def _fingerprint(credential: str) -> str:
    return hashlib.sha256(credential.encode("utf-8", "surrogateescape")).hexdigest()
