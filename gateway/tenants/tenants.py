"""Which tenant sends a request, and which policy holds for it.

Credentials are compared and kept as SHA-256 hashes only, and never logged. State is kept under the tenant's
name: its keys can change.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from multidict import CIMultiDictProxy

from gateway.core.errors import RequestRefused
from gateway.core.policy import Policy
from gateway.headers import Identity, read_identity
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.settings import ModelRule, Quota, Settings, TenantSettings, fingerprint

_SEPARATOR = "\0"
# Operators see this many digits of a key's hash: enough to tell callers apart, too few to find the key.
_DISPLAYED_DIGITS = 12
_TENANT, _KEY = "tenant:", "key:"
# Compared where no key has the hash that was looked up.
_NO_FINGERPRINT = "-" * 64
_UNKNOWN_KEY = "The gateway does not know this key: it takes the key of exactly one tenant of its settings."
# Model names come from clients, so the choices remembered for them are bounded: this holds some 4,000.
_CHOICES_BYTES = 1 << 20
_CHOICE_WEIGHT_BYTES = ENTRY_WEIGHT_BYTES + 100


@dataclass(frozen=True, slots=True)
class Tenant:
    """id: state is kept under it. upstream: the configured one; None means the first that fits.

    rules: about models, for this tenant alone. quota: None if nothing is limited.
    """

    id: str
    upstream: str | None
    policy: str
    rules: tuple[ModelRule, ...] = ()
    quota: Quota | None = None

    @property
    def label(self) -> str:
        """Of metrics: the configured name; empty for a caller without one, of whom there may be many."""
        return "" if self.id.startswith(_KEY) else self.id.removeprefix(_TENANT)

    @property
    def display_name(self) -> str:
        """For operators: the configured name, or the beginning of the key's hash."""
        if self.id.startswith(_KEY):
            return self.id[: len(_KEY) + _DISPLAYED_DIGITS]
        return self.id.removeprefix(_TENANT)


def make_tenant_id(name: str) -> str:
    """The id of a configured tenant."""
    return f"{_TENANT}{name}"


def find_tenant(settings: Settings, owner: str) -> Tenant | None:
    """The tenant under whose id something is kept; None if the settings do not let it in any more."""
    if owner.startswith(_KEY):
        return Tenant(owner, None, "default") if not settings.tenants else None
    return next((tenant for tenant in list_tenants(settings) if tenant.id == owner), None)


def list_tenants(settings: Settings) -> Sequence[Tenant]:
    """The configured ones, in the order of the file."""
    return [_make_tenant(section) for section in settings.tenants]


def _make_tenant(section: TenantSettings) -> Tenant:
    return Tenant(
        make_tenant_id(section.name),
        section.upstream,
        section.policy,
        section.models,
        section.quota if section.quota != Quota() else None,
    )


class Tenancy:
    def __init__(self, settings: Settings) -> None:
        # Each with its own key, to compare with.
        self._by_fingerprint = {
            key: (key, _make_tenant(section)) for section in settings.tenants for key in section.fingerprints
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
            return Tenant(f"{_KEY}{fingerprint(_join(identity))}", None, "default")
        # Some clients insist on a key of their own in one form and send the configured one in another.
        found = {tenant.id: tenant for key in identity.credentials if (tenant := self._find(key)) is not None}
        if len(found) != 1:
            raise RequestRefused(401, _UNKNOWN_KEY, code="invalid_api_key")
        return next(iter(found.values()))

    def _find(self, credential: str) -> Tenant | None:
        """Takes as long for a wrong key as for a right one, however much of it is right.

        What is looked up is a hash, whose digits a caller cannot choose one by one. The table compares
        it with an entry only where 64 bits of a hash with a random seed are equal.
        """
        given = fingerprint(credential)
        expected, tenant = self._by_fingerprint.get(given, (_NO_FINGERPRINT, None))
        return tenant if hmac.compare_digest(given, expected) else None


class Policies:
    """Chooses the policy of a request: the tenant's, unless a rule for its model names another.

    The tenant's own rules come before those for all tenants.
    """

    def __init__(self, settings: Settings) -> None:
        self._policies = settings.policies
        self._rules = [rule for rule in settings.models if rule.policy is not None]
        self._choices: Lru[tuple[str, str, str, str], Policy] = Lru(_CHOICES_BYTES)

    def choose(self, tenant: Tenant, upstream: str, model: str) -> Policy:
        """The policy of the first rule that fits and names one. Equal arguments give the same object."""
        if not self._rules and not tenant.rules:
            return self._policies[tenant.policy]
        key = tenant.id if tenant.rules else "", tenant.policy, upstream, model
        policy = self._choices.get(key)
        if policy is None:
            rules = (*tenant.rules, *self._rules)
            named = (rule.policy for rule in rules if rule.policy and rule.applies_to(model, upstream))
            policy = self._policies[next(named, None) or tenant.policy]
            self._choices.put(key, policy, _CHOICE_WEIGHT_BYTES + weigh_texts(model))
        return policy


def _join(identity: Identity) -> str:
    """Different for different identities. A value of a header has no NUL, and none here is empty."""
    further = ("", *identity.further) if identity.further else ()
    return _SEPARATOR.join((*identity.plain, *further))
