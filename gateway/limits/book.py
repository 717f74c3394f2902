"""Which limits hold for a model at an upstream, for one tenant? Every source in one book.

Configuration, the upstream's own model list, what refusals have taught, the bundled table (DESIGN §4);
`core/limits` chooses between them. Asks no upstream.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from gateway.core.limits.learned import Learned
from gateway.core.limits.model_limits import Limits, Sources, choose_limits
from gateway.limits.model_lists import ModelLists, choose_viewer
from gateway.limits.model_table import ModelTable
from gateway.settings import Settings
from gateway.state.calibrations import Calibrations

log = logging.getLogger("gateway.limits")

# A dictionary of so many takes 2 MB; emptied when it is full, and filled again from memory.
_MOST_REMEMBERED: Final = 4_096
# Looked up anew so often: what was learned expires, and a list that was not to be had is asked for again.
_FRESH_SECONDS: Final = 300.0
# No model is called that; names come from clients and are remembered.
_LONGEST_NAME: Final = 256
# What is learned with the long window asked for says nothing of requests without it.
_LONG_WINDOW_SUFFIX: Final = "\0long window"

_Place = tuple[str, str, str, bool]


class LimitsBook:
    def __init__(
        self,
        settings: Settings,
        lists: ModelLists,
        table: ModelTable,
        calibrations: Calibrations,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._rules = [rule for rule in settings.models if rule.is_about_limits]
        self._upstreams = settings.upstreams
        self._lists = lists
        self._table = table
        self._calibrations = calibrations
        self._clock = clock
        # With the time until which each is believed.
        self._known: dict[_Place, tuple[Limits, float]] = {}
        self._unknown: set[tuple[str, str]] = set()

    def read(self, owner: str, upstream: str, model: str, *, has_long_window: bool = False) -> Limits | None:
        """One look into a dictionary. None: not looked up lately, `load` does that."""
        known = self._known.get((owner, upstream, model, has_long_window))
        return known[0] if known is not None and self._clock() < known[1] else None

    async def load(self, owner: str, upstream: str, model: str, *, has_long_window: bool = False) -> Limits:
        """Unset fields where nobody knows: then the window counts as unlimited, never guessed.

        Reads the store once for each (tenant, upstream, model), for what was learned before a restart.
        """
        known = self.read(owner, upstream, model, has_long_window=has_long_window)
        if known is not None:
            return known
        if len(model) > _LONGEST_NAME:
            # Only a rule for every model is for this one, too.
            return self._configured(upstream, "")
        await self._calibrations.load_learned(owner, upstream, _learned_name(model, has_long_window))
        # Nothing is awaited from here on: nothing newer can be covered by what was gathered before it.
        place = (owner, upstream, model, has_long_window)
        limits = choose_limits(self._gather(place))
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        self._known[place] = (limits, self._clock() + _FRESH_SECONDS)
        if not limits.context and not limits.input:
            self._say_unknown(owner, upstream, model)
        return limits

    def is_configured(self, upstream: str, model: str) -> bool:
        """Does the operator name the window? Then nobody else need be asked."""
        return bool(self._configured(upstream, model).context)

    def learn(
        self, owner: str, upstream: str, model: str, limits: Limits, *, has_long_window: bool = False
    ) -> None:
        """What the numbers in an overflow error prove: for this tenant, the smallest of them, for a week."""
        place = (owner, upstream, model, has_long_window)
        before = self._read_learned(place)
        self._save(place, before, before.with_proof(limits, self._clock()))

    def learn_unknown(
        self, owner: str, upstream: str, model: str, refused_tokens: int, *, has_long_window: bool = False
    ) -> None:
        """After an overflow error without numbers. refused_tokens: our estimate of all that did not fit."""
        place = (owner, upstream, model, has_long_window)
        before = self._read_learned(place)
        self._save(place, before, before.with_refusal(refused_tokens, self._clock()))

    def unlearn(
        self, owner: str, upstream: str, model: str, answered_tokens: int, *, has_long_window: bool = False
    ) -> None:
        """After an answer to a prompt of this size: an error may have named a number that was no window."""
        place = (owner, upstream, model, has_long_window)
        before = self._read_learned(place)
        self._save(place, before, before.with_success(answered_tokens))

    def keep_list(self, viewer: str, upstream: str, listed: Mapping[str, Limits]) -> bool:
        """What the upstream's model list says to this viewer. True: a list that nobody saw before."""
        is_new = self._lists.keep(viewer, upstream, listed)
        self._known.clear()
        return is_new

    def keep_no_list(self, viewer: str, upstream: str) -> None:
        """It gave none: what it said before still counts."""
        if not self._lists.has(viewer, upstream):
            self.keep_list(viewer, upstream, {})

    def _read_learned(self, place: _Place) -> Learned:
        owner, upstream, model, has_long_window = place
        name = _learned_name(model, has_long_window)
        return self._calibrations.find_learned(owner, upstream, name)

    def _save(self, place: _Place, before: Learned, after: Learned) -> None:
        _, upstream, model, has_long_window = place
        if after is not before and len(model) <= _LONGEST_NAME:
            self._calibrations.save_learned(upstream, _learned_name(model, has_long_window), after)
            self._known.pop(place, None)

    def _gather(self, place: _Place) -> Sources:
        owner, upstream, model, has_long_window = place
        learned, now = self._read_learned(place), self._clock()
        return Sources(
            configured=self._configured(upstream, model),
            listed=self._lists.read(self._viewer(upstream, owner), upstream, model) or Limits(),
            proven=learned.proven_at(now),
            suspected=learned.suspected_at(now),
            table=self._table.read_limits(model) or Limits(),
            has_long_window=has_long_window,
        )

    def _configured(self, upstream: str, model: str) -> Limits:
        """The first rule that fits, and what the upstream's own settings say of every request."""
        rule = next((rule for rule in self._rules if rule.applies_to(model, upstream)), None)
        limits = rule.limits if rule is not None else Limits()
        settings = self._upstreams.get(upstream)
        if settings is None:
            return limits
        return replace(limits, body_bytes=settings.max_body_bytes, images=settings.max_images)

    def _viewer(self, upstream: str, owner: str) -> str:
        settings = self._upstreams.get(upstream)
        return choose_viewer(settings, owner) if settings is not None else owner

    def _say_unknown(self, owner: str, upstream: str, model: str) -> None:
        """Once, and not as long as the upstream's own answer is still to come."""
        settings, said = self._upstreams.get(upstream), (upstream, model)
        is_asking = settings is not None and settings.discover
        if said in self._unknown or (
            is_asking and not self._lists.has(self._viewer(upstream, owner), upstream)
        ):
            return
        if len(self._unknown) >= _MOST_REMEMBERED:
            self._unknown.clear()
        self._unknown.add(said)
        # Names come from clients: quoted, and no longer than a name can be.
        log.warning("no limits known for model %.100r at upstream %s: not compacted", model, upstream)


def _learned_name(model: str, has_long_window: bool) -> str:
    return model + _LONG_WINDOW_SUFFIX if has_long_window else model
