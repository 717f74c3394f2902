"""Which limits hold for a model at an upstream, for one tenant.

Gathers what configuration, the upstream's own model list, its past refusals and the bundled table say;
`core/limits` chooses between them. Sends no requests.

The bundled table, `data/model_limits.json`, comes from litellm (MIT, see data/NOTICE.md); its `_source` names
the rules. It says nothing about upstreams, so it is the last source.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec

from gateway.core.limits.model_limits import (
    LONGEST_NAME_CHARS,
    Learned,
    Limits,
    Sources,
    choose_limits,
    make_names,
    name_window_source,
)
from gateway.http.target import Upstreams
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.settings import ModelRule, Settings, UpstreamSettings
from gateway.state.calibrations import Calibrations
from gateway.tenants import list_tenants

log = logging.getLogger("gateway.limits")

# Some 4,000 models; what is dropped is looked up again.
_KNOWN_BYTES: Final = 2 << 20
_KNOWN_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 500
# Limits are looked up again this often: what was learned expires, and a missing list is asked for again.
_FRESH_SECONDS: Final = 300.0
# Far more models than a gateway is used with. Further names are most likely made up.
_MOST_LINES: Final = 500
# What is learned with the long window requested does not hold for requests without it.
_LONG_WINDOW_SUFFIX: Final = "\0long window"
# A list of 400 models takes some 150 KB; callers of one upstream mostly see the same one.
_LISTS_BYTES: Final = 8 << 20
# A name, a place in a dictionary and three numbers.
_MODEL_WEIGHT_BYTES: Final = 350
_VIEWS_BYTES: Final = 1 << 20
_VIEW_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 350
_ALL_TENANTS: Final = ""
_FOUND_NAMES: Final = 1_024


class ServedModel(NamedTuple):
    """A model at an upstream, as one tenant sees it. has_long_window: whether the request asks for it."""

    owner: str
    upstream: str
    model: str
    has_long_window: bool = False

    @property
    def learned_name(self) -> str:
        return self.model + _LONG_WINDOW_SUFFIX if self.has_long_window else self.model


def choose_viewer(upstream: UpstreamSettings, owner: str) -> str:
    """A list that a key was shown which all tenants share holds for all of them, any other for one tenant."""
    return owner if upstream.api_key is None or upstream.key_owner is not None else _ALL_TENANTS


class ModelLists:
    """What upstreams have said about their own models.

    The same upstream may show different lists to different keys, so a list is kept for its viewer. Equal
    lists are held in memory once.
    """

    def __init__(self) -> None:
        self._lists: Lru[bytes, Mapping[str, Limits]] = Lru(_LISTS_BYTES)
        # The fingerprint of the list, by viewer and upstream.
        self._views: Lru[tuple[str, str], bytes] = Lru(_VIEWS_BYTES)

    def keep(self, viewer: str, upstream: str, listed: Mapping[str, Limits]) -> bool:
        """True if no equal list was held before."""
        fingerprint = hashlib.sha256(repr(sorted(listed.items(), key=itemgetter(0))).encode()).digest()
        self._views.put((viewer, upstream), fingerprint, _VIEW_WEIGHT_BYTES)
        is_new = fingerprint not in self._lists
        if is_new:
            weight = sum(_MODEL_WEIGHT_BYTES + weigh_texts(name) for name in listed)
            self._lists.put(fingerprint, listed, weight + _VIEW_WEIGHT_BYTES)
        return is_new

    def has(self, viewer: str, upstream: str) -> bool:
        """Whether the upstream has been asked, even without success."""
        return (viewer, upstream) in self._views

    def find(self, viewer: str, upstream: str, model: str) -> Limits | None:
        """None if it was not asked yet, or its list does not name this model."""
        fingerprint = self._views.get((viewer, upstream))
        listed = self._lists.get(fingerprint) if fingerprint is not None else None
        return listed.get(model) if listed is not None else None

    def of_upstreams(self, upstreams: Collection[str]) -> "ModelLists":
        """A copy with the lists of these upstreams only."""
        copy = ModelLists()
        for viewer, upstream in self._views:
            fingerprint = self._views.peek((viewer, upstream))
            listed = self._lists.peek(fingerprint) if fingerprint is not None else None
            if listed is not None and upstream in upstreams:
                copy.keep(viewer, upstream, listed)
        return copy


class _Row(msgspec.Struct):
    context: int
    input: int | None
    output: int | None


class ModelTable:
    """Limits by model name. Names that were looked up are kept, with or without limits."""

    def __init__(self, rows: Mapping[str, Limits]) -> None:
        self._rows = rows
        self._find_cached = lru_cache(_FOUND_NAMES)(self._search)

    @classmethod
    def load(cls) -> "ModelTable":
        """About 10 ms."""
        return cls(parse_table(files("gateway").joinpath("data/model_limits.json").read_bytes()))

    @property
    def size(self) -> int:
        """How many models it has."""
        return len(self._rows)

    @property
    def rows(self) -> Mapping[str, Limits]:
        return self._rows

    def find(self, model: str) -> Limits | None:
        """None for a model that is not in the table."""
        return self._find_cached(model) if len(model) <= LONGEST_NAME_CHARS else None

    def find_name(self, model: str) -> str | None:
        """The name by which the table has the model."""
        return next((name for name in make_names(model) if name in self._rows), None)

    def _search(self, model: str) -> Limits | None:
        name = self.find_name(model)
        return self._rows[name] if name is not None else None


def parse_table(data: bytes) -> dict[str, Limits]:
    """Rows by name. The rows share their few hundred distinct limits, to stay small in memory."""
    raw = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    del raw["_source"]
    shared: dict[bytes, Limits] = {}
    for row in raw.values():
        text = bytes(row)
        if text not in shared:
            shared[text] = _make_limits(msgspec.json.decode(text, type=_Row))
    return {name: shared[bytes(row)] for name, row in raw.items()}


def _make_limits(row: _Row) -> Limits:
    """An output as large as the window cannot be reserved (`_source.caveat`), so it counts as unknown."""
    is_usable = row.output is not None and row.output < row.context
    return Limits(context=row.context, input=row.input, output=row.output if is_usable else None)


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
        self._rules = settings.models
        # Those of single tenants, which come first.
        self._own_rules = {tenant.id: tenant.rules for tenant in list_tenants(settings) if tenant.rules}
        self._upstreams = Upstreams(settings)
        self._lists = lists
        self._table = table
        self._calibrations = calibrations
        self._clock = clock
        self._known: Lru[ServedModel, _Fresh] = Lru(_KNOWN_BYTES)
        # What the log has said of a model at an upstream.
        self._logged: set[tuple[str, str, str]] = set()

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
        if len(served.model) > LONGEST_NAME_CHARS:
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
        if len(served.model) > LONGEST_NAME_CHARS:
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
        if after is not before and len(served.model) <= LONGEST_NAME_CHARS:
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

    def _list_rules(self, owner: str) -> Sequence[ModelRule]:
        return (*self._own_rules.get(owner, ()), *self._rules)

    def _find_configured(self, served: ServedModel) -> Limits:
        """The first rule that fits the model, and what the upstream's settings say about every request."""
        limits = next(
            (
                rule.limits
                for rule in self._list_rules(served.owner)
                if rule.is_about_limits and rule.applies_to(served.model, served.upstream)
            ),
            Limits(),
        )
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
        rules = self._list_rules(served.owner)
        if any(rule.applies_to(model, upstream) for rule in rules):
            return
        near = next((rule for rule in rules if rule.nearly_applies_to(model, upstream)), None)
        if near is not None and self._is_news("near rule", served):
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
        if is_waiting or not self._is_news("unknown", served):
            return
        # Clients choose the name, so it is quoted and cut.
        log.warning(
            "no limits known for model %.100r at upstream %s: not compacted before its first refusal; name "
            "its window in the settings (models: [{match: …, context: …}])",
            served.model,
            served.upstream,
        )

    def _is_news(self, what: str, served: ServedModel) -> bool:
        """Once for each model; and clients could name ever more models, so only so many of them."""
        key = (what, served.upstream, served.model)
        if key in self._logged or len(self._logged) >= _MOST_LINES:
            return False
        self._logged.add(key)
        return True
