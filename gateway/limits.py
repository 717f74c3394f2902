"""Which limits hold for a model at an upstream? Configuration first, then the bundled table.

DESIGN §4: best source first. Later versions put what upstreams say about themselves between the two.
"""

import logging

from gateway.core.limits import Limits
from gateway.model_table import ModelTable
from gateway.settings import ModelRule

log = logging.getLogger("gateway.limits")

_MOST_REMEMBERED = 1_024
# No model is called that; names come from clients and are remembered.
_LONGEST_NAME = 256


class LimitsBook:
    def __init__(self, rules: tuple[ModelRule, ...], table: ModelTable) -> None:
        self._rules = rules
        self._table = table
        self._known: dict[tuple[str, str], Limits] = {}

    def read(self, upstream: str, model: str) -> Limits:
        """Unset fields where nobody knows: then the window counts as unlimited, never guessed."""
        if len(model) > _LONGEST_NAME:
            return Limits()
        key = (upstream, model)
        limits = self._known.get(key)
        if limits is None:
            limits = self._choose(upstream, model)
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            self._known[key] = limits
            if not limits.context and not limits.input:
                # Names come from clients: quoted, and no longer than a name can be.
                log.warning("no limits known for model %.100r at upstream %s: not compacted", model, upstream)
        return limits

    def _choose(self, upstream: str, model: str) -> Limits:
        rule = next((rule for rule in self._rules if rule.applies_to(model, upstream)), None)
        configured = rule.limits if rule else Limits()
        return configured.with_defaults(self._table.read_limits(model) or Limits())
