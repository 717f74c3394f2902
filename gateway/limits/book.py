"""Which limits hold for a model at an upstream, for one tenant.

Gathers what configuration, the upstream's own model list, its past refusals and the bundled table say;
`core/limits` chooses between them. Sends no requests.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from gateway.core.limits.learned import Learned
from gateway.core.limits.model_limits import Limits, Sources, choose_limits, name_window_source
from gateway.http.target import Upstreams
from gateway.limits.model_lists import ModelLists, choose_viewer
from gateway.limits.model_table import ModelTable
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.settings import Settings
from gateway.state.calibrations import Calibrations
from gateway.tenants import list_tenants

log = logging.getLogger("gateway.limits")

# Some 4,000 of each; what is dropped is looked up or logged again.
_KNOWN_BYTES: Final = 2 << 20
_KNOWN_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 500
# Limits are looked up again this often: what was learned expires, and a missing list is asked for again.
_FRESH_SECONDS: Final = 300.0
# Clients choose the name, and it is kept. No model has a longer one.
_LONGEST_NAME: Final = 256
# What is learned with the long window requested does not hold for requests without it.
# Far more models than a gateway is used with. Further names are most likely made up.
_MOST_LINES: Final = 500
# Before a model in what has been logged, for the other line.
_NEAR_RULE: Final = "near rule\0"
_LONG_WINDOW_SUFFIX: Final = "\0long window"


class ServedModel(NamedTuple):
    """A model at an upstream, as one tenant sees it. has_long_window: whether the request asks for it."""

    owner: str
    upstream: str
    model: str
    has_long_window: bool = False

    @property
    def learned_name(self) -> str:
        return self.model + _LONG_WINDOW_SUFFIX if self.has_long_window else self.model


class _Fresh(NamedTuple):
    """Limits, until when they hold, and how much other processes had learned when they were gathered."""

    limits: Limits
    until_seconds: float
    learned_elsewhere: int


class LimitsBook:
    def __init__(
        self,
        settings: Settings,
        lists: ModelLists,
        table: ModelTable,
        calibrations: Calibrations,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._all_rules = settings.models
        self._rules = [rule for rule in settings.models if rule.is_about_limits]
        # Those of single tenants, which come first.
        self._own_rules = {tenant.id: tenant.rules for tenant in list_tenants(settings) if tenant.rules}
        self._upstreams = Upstreams(settings)
        self._lists = lists
        self._table = table
        self._calibrations = calibrations
        self._clock = clock
        self._known: Lru[ServedModel, _Fresh] = Lru(_KNOWN_BYTES)
        # Models without known limits that the log has named.
        self._logged: Lru[tuple[str, str], None] = Lru(_KNOWN_BYTES)
        self._lines = 0

    def find(self, served: ServedModel) -> Limits | None:
        """In memory alone; None if it is time to ask the sources, for the first time or again."""
        known = self._known.get(served)
        if known is None or self._clock() >= known.until_seconds:
            return None
        return known.limits if known.learned_elsewhere == self._calibrations.learned_elsewhere else None

    async def load(self, served: ServedModel) -> Limits:
        """From memory without suspending; every few minutes the sources are asked again.

        Limits that no source knows are unset: an unknown window counts as unlimited and is never guessed.
        """
        known = self.find(served)
        if known is not None:
            return known
        if len(served.model) > _LONGEST_NAME:
            # A rule for every model still holds.
            return self._find_configured(served._replace(model=""))
        await self._calibrations.load_learned(served.owner, served.upstream, served.learned_name)
        # There is no await from here on, so limits learned meanwhile are not overwritten.
        learned_elsewhere = self._calibrations.learned_elsewhere
        self._log_near_rule(served)
        limits = choose_limits(self._gather(served))
        weight = _KNOWN_WEIGHT_BYTES + weigh_texts(served.model)
        fresh = _Fresh(limits, self._clock() + _FRESH_SECONDS, learned_elsewhere)
        self._known.put(served, fresh, weight)
        if not limits.context and not limits.input:
            self._log_unknown(served)
        return limits

    def is_configured(self, owner: str, upstream: str, model: str) -> bool:
        """Whether the settings name the window, so that the upstream need not be asked."""
        return bool(self._find_configured(ServedModel(owner, upstream, model)).context)

    def name_source(self, served: ServedModel) -> str:
        """Where the window of a model comes from that was loaded before, in a word for operators."""
        if len(served.model) > _LONGEST_NAME:
            return "configured"
        return name_window_source(self._gather(served))

    def learn(self, served: ServedModel, limits: Limits) -> None:
        """What the numbers in an overflow error prove: for this tenant, the smallest of them, for a week."""
        before = self._find_learned(served)
        self._save(served, before, before.with_proof(limits, self._clock()))

    def learn_unknown(self, served: ServedModel, refused_tokens: int) -> None:
        """After an overflow error without numbers. refused_tokens: our estimate of what did not fit."""
        before = self._find_learned(served)
        self._save(served, before, before.with_refusal(refused_tokens, self._clock()))

    def unlearn(self, served: ServedModel, accepted_tokens: int) -> None:
        """After a response to a prompt of this size: an error may have named a number that was no window."""
        before = self._find_learned(served)
        self._save(served, before, before.with_success(accepted_tokens))

    def keep_list(self, viewer: str, upstream: str, listed: Mapping[str, Limits]) -> bool:
        """What the upstream's model list says to this viewer. True if no viewer has seen this list before."""
        is_new = self._lists.keep(viewer, upstream, listed)
        self._known = Lru(_KNOWN_BYTES)
        return is_new

    def keep_no_list(self, viewer: str, upstream: str) -> None:
        """The upstream gave no list now. An earlier one still holds."""
        if not self._lists.has(viewer, upstream):
            self.keep_list(viewer, upstream, {})

    def _find_learned(self, served: ServedModel) -> Learned:
        return self._calibrations.find_learned(served.owner, served.upstream, served.learned_name)

    def _save(self, served: ServedModel, before: Learned, after: Learned) -> None:
        if after is not before and len(served.model) <= _LONGEST_NAME:
            self._calibrations.save_learned(served.upstream, served.learned_name, after)
            self._known.pop(served)

    def _gather(self, served: ServedModel) -> Sources:
        learned, now = self._find_learned(served), self._clock()
        viewer = self._choose_viewer(served)
        return Sources(
            configured=self._find_configured(served),
            listed=self._lists.find(viewer, served.upstream, served.model) or Limits(),
            proven=learned.proven_at(now),
            suspected=learned.suspected_at(now),
            table=self._table.find(served.model) or Limits(),
            has_long_window=served.has_long_window,
        )

    def _find_configured(self, served: ServedModel) -> Limits:
        """The first rule that fits the model, and what the upstream's settings say about every request."""
        own = (rule for rule in self._own_rules.get(served.owner, ()) if rule.is_about_limits)
        fitting = (rule for rule in (*own, *self._rules) if rule.applies_to(served.model, served.upstream))
        rule = next(fitting, None)
        limits = rule.limits if rule is not None else Limits()
        settings = self._upstreams.find(served.upstream, served.owner)
        if settings is None:
            return limits
        return replace(limits, body_bytes=settings.max_body_bytes, images=settings.max_images)

    def _choose_viewer(self, served: ServedModel) -> str:
        settings = self._upstreams.find(served.upstream, served.owner)
        return choose_viewer(settings, served.owner) if settings is not None else served.owner

    def _log_near_rule(self, served: ServedModel) -> None:
        """Once for each model that no rule fits, if one nearly does: that is hardly meant."""
        upstream, model = served.upstream, served.model
        rules = (*self._own_rules.get(served.owner, ()), *self._all_rules)
        if any(rule.applies_to(model, upstream) for rule in rules):
            return
        near = next((rule for rule in rules if rule.nearly_applies_to(model, upstream)), None)
        if near is not None and self._is_news((upstream, f"{_NEAR_RULE}{model}")):
            log.warning(
                "the rule with match %r does not apply to model %.100r: case counts, and a dot is a dot",
                near.match,
                model,
            )

    def _log_unknown(self, served: ServedModel) -> None:
        """Once for each model, and not while the upstream may still name its limits."""
        settings = self._upstreams.find(served.upstream, served.owner)
        has_asked = self._lists.has(self._choose_viewer(served), served.upstream)
        is_waiting = settings is not None and settings.discover and not has_asked
        if is_waiting or not self._is_news((served.upstream, served.model)):
            return
        # Clients choose the name, so it is quoted and cut.
        log.warning(
            "no limits known for model %.100r at upstream %s: not compacted before its first refusal; name "
            "its window in the settings (models: [{match: …, context: …}])",
            served.model,
            served.upstream,
        )

    def _is_news(self, key: tuple[str, str]) -> bool:
        """Once for each key; and clients could name ever more models, so only so many of them."""
        if key in self._logged or self._lines >= _MOST_LINES:
            return False
        self._lines += 1
        self._logged.put(key, None, _KNOWN_WEIGHT_BYTES + weigh_texts(*key))
        return True
