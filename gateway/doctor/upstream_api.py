"""Is the API of an upstream where the settings say, does it accept the key, and which models does it list?"""

from collections.abc import Collection
from dataclasses import dataclass, field

from gateway.doctor.finding import Diagnosis, blame, note_ok, warn
from gateway.doctor.reaching import SUBJECT, explain
from gateway.http.client import Client
from gateway.limits.discovery import (
    KEY_WANTED,
    LIST_PATH,
    REDIRECTS,
    Listed,
    Unlisted,
    find_other_url,
    probe,
)
from gateway.settings import UpstreamSettings
from gateway.wire.model_list import list_model_names


@dataclass(frozen=True, kw_only=True)
class UpstreamReport:
    """names: of the models in its list. date: of its response. is_usable: whether requests can reach it."""

    findings: list[Diagnosis]
    names: frozenset[str] = field(default_factory=frozenset)
    date: str = ""
    is_usable: bool = True


async def examine_upstream(client: Client, upstream: UpstreamSettings) -> UpstreamReport:
    found, other = await probe(upstream, client)
    if found.error is not None:
        return UpstreamReport(findings=[explain(upstream, found.error)], is_usable=False)
    date = found.date
    if isinstance(found, Listed) and found.is_api:
        names = list_model_names(found.body)
        return UpstreamReport(findings=[_describe_list(upstream, found, names)], names=names, date=date)
    if found.status in KEY_WANTED:
        finding = _describe_key(upstream, found.status)
        return UpstreamReport(findings=[finding], date=date, is_usable=upstream.api_key is None)
    if isinstance(found, Unlisted) and found.status in REDIRECTS:
        return UpstreamReport(findings=[_describe_redirect(upstream, found)], date=date, is_usable=False)
    return UpstreamReport(
        findings=[_describe_no_list(upstream, found, other)],
        date=date,
        is_usable=found.status != 200 and not (other is not None and other.is_api),
    )


def _describe_no_list(
    upstream: UpstreamSettings, found: Listed | Unlisted, other: Listed | Unlisted | None
) -> Diagnosis:
    """other: what the likely other address answered."""
    base_url = upstream.base_url
    other_url = find_other_url(base_url)
    what = f"{upstream.name}: {base_url + LIST_PATH} is not a list of models (status {found.status})"
    if other is not None and other.is_api:
        return blame(SUBJECT, f"{what}, and {other_url + LIST_PATH} is", f"base_url: {other_url}")
    if found.status == 200:
        return blame(SUBJECT, f"{what} but a web page", f"correct upstreams.{upstream.name}.base_url")
    if found.status >= 500:
        return warn(SUBJECT, what, f"look at its log; curl -i {base_url + LIST_PATH}")
    fix = (
        f'models: [{{match: "NAME", upstream: {upstream.name}, context: 32768}}]  # names the windows instead'
    )
    return warn(SUBJECT, what, fix)


def _describe_list(upstream: UpstreamSettings, found: Listed, names: Collection[str]) -> Diagnosis:
    key = "accepts its api_key" if upstream.api_key is not None else "answers without a key"
    return note_ok(
        SUBJECT,
        f"{upstream.name}: {key}; lists {len(names):,} models, {len(found.limits):,} with their windows",
    )


def _describe_key(upstream: UpstreamSettings, status: int) -> Diagnosis:
    if upstream.api_key is None:
        what = f"{upstream.name}: is there, and wants the key of each caller (status {status})"
        return note_ok(SUBJECT, what)
    what = f"{upstream.name}: refuses its api_key (status {status})"
    return blame(
        SUBJECT, what, f"upstreams.{upstream.name}.api_key: ${{A_VALID_KEY}}  # from the environment"
    )


def _describe_redirect(upstream: UpstreamSettings, found: Unlisted) -> Diagnosis:
    """The upstream chooses where to, so it is shown as an ASCII literal."""
    place = found.place.removesuffix(LIST_PATH)
    what = f"{upstream.name}: redirects to {place!a}, which is not followed"
    return blame(SUBJECT, what, f"base_url: {ascii(place)[1:-1]}" if place else "correct its base_url")
