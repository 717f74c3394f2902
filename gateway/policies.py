"""Which policy holds for a request: the tenant's, unless a rule for its model names another."""

from gateway.core.policy import Policy
from gateway.settings import Settings
from gateway.tenancy import Tenant

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
