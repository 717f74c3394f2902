"""Is the window of each model known? Without one, nothing is compacted before the upstream refuses."""

import fnmatch
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from gateway.command_line.model_report import describe_model
from gateway.doctor.finding import Diagnosis, note_ok, warn
from gateway.doctor.streaming import suggest_names
from gateway.limits.book import ModelTable
from gateway.settings import Settings

_SUBJECT: Final = "windows"
_WILDCARDS: Final = frozenset("*?[")
_SHOWN: Final = 4
# Lists of more models are those of whole markets.
_MOST_LISTED: Final = 100


async def examine_windows(
    settings: Settings, models: Collection[str], listed: Mapping[str, Collection[str]]
) -> list[Diagnosis]:
    """models: those that the caller names; those that a rule names are added. listed: by upstream, where it
    has a list.
    """
    exact = [rule.match for rule in settings.models if not _WILDCARDS & set(rule.match)]
    findings = []
    for model in dict.fromkeys([*models, *exact]):
        findings.append(await _examine_model(settings, model))
        if model in models:
            findings += _find_unlisted(model, listed)
    findings += [
        finding for name, names in listed.items() for finding in _examine_list(settings, name, names)
    ]
    if not findings:
        findings.append(
            note_ok(_SUBJECT, "no model was named; --model NAME says whether its window is known")
        )
    return findings


async def _examine_model(settings: Settings, model: str) -> Diagnosis:
    report = await describe_model(
        settings, model, asks=any(each.discover for each in settings.upstreams.values())
    )
    places = report.facts["upstreams"]
    known = {place["context"] or place["input"] for place in places} - {None}
    if report.is_known or known:
        sources = ", ".join(
            dict.fromkeys(place["source"] for place in places if place["source"] != "unknown")
        )
        return note_ok(_SUBJECT, f"{ascii(model)[1:-1]}: {min(known):,} tokens, from {sources}")
    rule = f"models: [{{match: {json.dumps(model)}, context: 32768, output: 4096}}]  # its real window"
    return warn(_SUBJECT, f"{ascii(model)[1:-1]}: its window is unknown, so it counts as unlimited", rule)


def _find_unlisted(model: str, listed: Mapping[str, Collection[str]]) -> Iterator[Diagnosis]:
    names = {name for some in listed.values() for name in some}
    if names and model not in names:
        what = f"{ascii(model)[1:-1]}: no upstream with a list of models has it"
        yield warn(_SUBJECT, what, suggest_names(model, names))


def _examine_list(settings: Settings, upstream: str, names: Collection[str]) -> Iterator[Diagnosis]:
    """Of a short list, the models that no rule and no table knows."""
    if not names or len(names) > _MOST_LISTED:
        return
    table = ModelTable.load()
    unknown = sorted(name for name in names if not _is_known(settings, table, upstream, name))
    if unknown:
        shown = ", ".join(ascii(name)[1:-1] for name in unknown[:_SHOWN])
        rule = (
            f"models: [{{match: {json.dumps(unknown[0])}, context: 32768, output: 4096}}]  # its real window"
        )
        what = (
            f"{upstream}: no rule and no table knows the windows of {len(unknown)} of its {len(names)} models"
        )
        yield warn(_SUBJECT, f"{what} ({shown})", rule)


def _is_known(settings: Settings, table: ModelTable, upstream: str, name: str) -> bool:
    has_rule = any(
        rule.is_about_limits and rule.upstream in (None, upstream) and fnmatch.fnmatchcase(name, rule.match)
        for rule in settings.models
    )
    return has_rule or table.find(name) is not None
