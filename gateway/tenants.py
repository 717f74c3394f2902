"""Which tenant sends a request, and which policy holds for it.

Credentials are compared and kept as SHA-256 hashes only, and never logged.
"""

import hashlib
from dataclasses import dataclass

from multidict import CIMultiDictProxy

from gateway.core.errors import RequestRefused
from gateway.core.policy import Policy
from gateway.headers import Identity, read_identity
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

    def identify(self, headers: CIMultiDictProxy[str], target: str = "") -> Tenant:
        """Raises RequestRefused (401) if tenants are configured and not exactly one of them has a key of this
        request. target: path and query, which may hold a key, too.

        Without configured tenants every credential in every form, and the account it is used for, make the
        tenant; callers who send none of them share one.
        """
        identity = read_identity(headers, target)
        if not self._is_closed:
            return Tenant(f"{_KEY}{_fingerprint(_join(identity))}", None, "default")
        # Some clients insist on a key of their own in one form and send the configured one in another.
        found = {self._by_fingerprint.get(_fingerprint(key)) for key in identity.credentials} - {None}
        tenant = found.pop() if found else None
        if tenant is None or found:
            raise RequestRefused(
                401, "Incorrect API key provided.", kind="invalid_request_error", code="invalid_api_key"
            )
        return tenant


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


def _fingerprint(credential: str) -> str:
    return hashlib.sha256(credential.encode("utf-8", "surrogateescape")).hexdigest()


def _join(identity: Identity) -> str:
    """Different for different identities. A value of a header has no NUL, and none here is empty."""
    further = ("", *identity.further) if identity.further else ()
    return _SEPARATOR.join((*identity.plain, *further))
