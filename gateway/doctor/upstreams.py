"""Upstreams: is each there, does it accept the key, which models does it list, does it stream, and is the
window of each model known? Without a window nothing is compacted before the upstream refuses.
"""

import difflib
import fnmatch
import json
import socket
import ssl
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from gateway.activity.prices import load_price_table, make_price_list
from gateway.command_line.model_report import describe_model
from gateway.core.money import count_usd
from gateway.core.sizing.usage import Usage
from gateway.doctor.finding import Diagnosis, blame, note_ok, warn
from gateway.http.client import Client, Fetched, OwnCall
from gateway.http.failures import CALL_ERRORS, describe_failure, list_causes
from gateway.http.target import make_url
from gateway.limits.book import ModelTable
from gateway.limits.discovery import (
    KEY_WANTED,
    LIST_PATH,
    REDIRECTS,
    Listed,
    Unlisted,
    find_other_url,
    make_list_headers,
    probe,
)
from gateway.settings import FormatName, Settings, UpstreamSettings
from gateway.wire.model_list import MAX_BYTES, list_model_names
from gateway.wire.reader import ResponseReader

# OpenSSL's numbers of what is wrong with a certificate, X509_V_ERR_….
_EXPIRED, _SELF_SIGNED, _UNKNOWN_AUTHORITY, _OTHER_NAME = 10, 18, (19, 20, 21), (62, 64)


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
        return UpstreamReport(findings=[_explain(upstream, found.error)], is_usable=False)
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
        return blame("upstream", f"{what}, and {other_url + LIST_PATH} is", f"base_url: {other_url}")
    if found.status == 200:
        return blame("upstream", f"{what} but a web page", f"correct upstreams.{upstream.name}.base_url")
    if found.status >= 500:
        return warn("upstream", what, f"look at its log; curl -i {base_url + LIST_PATH}")
    fix = (
        f'models: [{{match: "NAME", upstream: {upstream.name}, context: 32768}}]  # names the windows instead'
    )
    return warn("upstream", what, fix)


def _describe_list(upstream: UpstreamSettings, found: Listed, names: Collection[str]) -> Diagnosis:
    key = "accepts its api_key" if upstream.api_key is not None else "answers without a key"
    return note_ok(
        "upstream",
        f"{upstream.name}: {key}; lists {len(names):,} models, {len(found.limits):,} with their windows",
    )


def _describe_key(upstream: UpstreamSettings, status: int) -> Diagnosis:
    if upstream.api_key is None:
        what = f"{upstream.name}: is there, and wants the key of each caller (status {status})"
        return note_ok("upstream", what)
    what = f"{upstream.name}: refuses its api_key (status {status})"
    return blame(
        "upstream", what, f"upstreams.{upstream.name}.api_key: ${{A_VALID_KEY}}  # from the environment"
    )


def _describe_redirect(upstream: UpstreamSettings, found: Unlisted) -> Diagnosis:
    """The upstream chooses where to, so it is shown as an ASCII literal."""
    place = found.place.removesuffix(LIST_PATH)
    what = f"{upstream.name}: redirects to {place!a}, which is not followed"
    return blame("upstream", what, f"base_url: {ascii(place)[1:-1]}" if place else "correct its base_url")


# Why no response came: the name, the port, the certificate, or time


def _explain(upstream: UpstreamSettings, error: BaseException) -> Diagnosis:
    """Why no response came."""
    what = f"{upstream.name}: {describe_failure(error, upstream.base_url)}"
    return blame("upstream", what, _choose_fix(upstream, list(list_causes(error))))


def _choose_fix(upstream: UpstreamSettings, causes: list[BaseException]) -> str:
    parts = urlsplit(upstream.base_url)
    host, key = parts.hostname or "", f"upstreams.{upstream.name}.base_url"
    for cause in reversed(causes):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _fix_certificate(cause.verify_code, host)
        if isinstance(cause, socket.gaierror):
            return f"getent hosts {host}  # then correct {key}, or the DNS of this machine"
        if isinstance(cause, ssl.SSLError):
            return f"base_url: http://{parts.netloc}{parts.path}  # if the server speaks no TLS"
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return f"start the server, or correct the port in {key}"
    return f"curl -v {upstream.base_url}/models  # a firewall, a proxy, or {key}"


def _fix_certificate(code: int, host: str) -> str:
    if code == _EXPIRED:
        return f"renew the certificate of {host}; `date` shows whether the clock here is right"
    if code == _SELF_SIGNED or code in _UNKNOWN_AUTHORITY:
        # Without `ca_file`, what the system trusts is trusted.
        return "cp CA.pem /usr/local/share/ca-certificates/CA.crt && update-ca-certificates"
    if code in _OTHER_NAME:
        return f"use a name in base_url that the certificate is for, not {host}"
    return f"openssl s_client -connect {host}:443  # shows the certificate that is not accepted"


# Does a model answer in a stream, and with usage?

_HELLO: Final = [{"role": "user", "content": "Hi"}]
_PATHS: Final[Mapping[FormatName, str]] = {
    "chat": "/chat/completions",
    "responses": "/responses",
    "messages": "/messages",
}
_USAGE: Final = {"stream": True, "stream_options": {"include_usage": True}}
# The smallest reply that the API of OpenAI lets one ask for in this format.
_LEAST_OUTPUT: Final = 16
_NEWER_NAME: Final = "max_completion_tokens"
_SHOWN_NAMES: Final = 3
_TIMEOUT_SECONDS: Final = 10.0


async def examine_stream(
    client: Client,
    settings: Settings,
    upstream: UpstreamSettings,
    model: str,
    names: Collection[str],
) -> Diagnosis:
    """Asks a model for one token, which is billed. names: the models that the upstream lists."""
    response = await _ask(client, upstream, model)
    if isinstance(response, Diagnosis):
        return response
    if response.status == 200:
        return _describe_stream(settings, upstream, model, response)
    return _describe_refusal(upstream, model, response, names)


async def _ask(client: Client, upstream: UpstreamSettings, model: str) -> Fetched | Diagnosis:
    wire_format: FormatName = next(name for name in _PATHS if name in upstream.formats)
    body = _make_body(wire_format, model)
    response = await _send(client, upstream, wire_format, body)
    is_newer = (
        isinstance(response, Fetched)
        and response.status == 400
        and _NEWER_NAME.encode() in (response.body or b"")
    )
    if is_newer and "max_tokens" in body:
        del body["max_tokens"]
        response = await _send(client, upstream, wire_format, body | {_NEWER_NAME: 1})
    return response


async def _send(
    client: Client, upstream: UpstreamSettings, wire_format: FormatName, body: Mapping[str, Any]
) -> Fetched | Diagnosis:
    headers = [*make_list_headers(upstream, ()), ("Content-Type", "application/json")]
    url = str(make_url(upstream, _PATHS[wire_format]))
    call = OwnCall(upstream, "POST", url, headers, msgspec.json.encode(body))
    try:
        return await client.fetch(call, _TIMEOUT_SECONDS, MAX_BYTES)
    except CALL_ERRORS as error:
        return _explain(upstream, error)


def _make_body(wire_format: FormatName, model: str) -> dict[str, Any]:
    if wire_format == "chat":
        return {"model": model, "messages": _HELLO, "max_tokens": 1, **_USAGE}
    if wire_format == "responses":
        return {"model": model, "input": "Hi", "max_output_tokens": _LEAST_OUTPUT, "stream": True}
    return {"model": model, "messages": _HELLO, "max_tokens": 1, "stream": True}


def _describe_stream(
    settings: Settings, upstream: UpstreamSettings, model: str, response: Fetched
) -> Diagnosis:
    place = f"{model} at {upstream.name}"
    if "text/event-stream" not in response.headers.get("content-type", ""):
        fix = f"turn off buffering in a proxy before {upstream.name}; the answer was asked for as a stream"
        return warn("streaming", f"{place}: did not stream its answer", fix)
    reader = ResponseReader("text/event-stream", "")
    reader.feed(response.body or b"")
    usage = reader.finish().usage
    if usage is None:
        fix = f"upgrade the server of {upstream.name} to one that knows stream_options.include_usage"
        return warn(
            "streaming", f"{place}: streams without usage, so sizes are estimates and costs unknown", fix
        )
    return note_ok(
        "streaming", f"{place}: streams, with usage; {_describe_cost(settings, upstream, model, usage)}"
    )


def _describe_cost(settings: Settings, upstream: UpstreamSettings, model: str, usage: Usage) -> str:
    tokens = f"this question cost {usage.prompt_tokens} + {usage.output_tokens} tokens"
    price = make_price_list(settings, load_price_table()).find(model, upstream.name)
    return tokens if price is None else f"{tokens}, some ${count_usd(price, usage):.6f}"


def _describe_refusal(
    upstream: UpstreamSettings, model: str, response: Fetched, names: Collection[str]
) -> Diagnosis:
    place = f"{model} at {upstream.name}"
    if response.status in (401, 403):
        if upstream.api_key is None:
            return note_ok("streaming", f"{place}: not tried, as each caller has a key of its own")
        fix = f"upstreams.{upstream.name}.api_key: ${{A_KEY_THAT_MAY_USE_IT}}"
        return blame(
            "streaming", f"{place}: its api_key may not use the model (status {response.status})", fix
        )
    if response.status == 429:
        fix = "wait, or raise the limits of this account at the provider"
        return warn("streaming", f"{place}: its limit or quota is used up (status 429)", fix)
    if names and model not in names:
        return blame("streaming", f"{place}: the upstream knows no such model", _suggest_names(model, names))
    fix = f"curl -i {upstream.base_url}/models  # is {model} among them?"
    return blame("streaming", f"{place}: a request of one word was refused (status {response.status})", fix)


def _suggest_names(model: str, names: Collection[str]) -> str:
    """The fix for a model that a list lacks."""
    near = difflib.get_close_matches(model, names, _SHOWN_NAMES, 0.4) or sorted(names)[:_SHOWN_NAMES]
    return f"use a model that it lists, such as {', '.join(map(ascii, near))}"


# Is the window of each model known?

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
            note_ok("windows", "no model was named; --model NAME says whether its window is known")
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
        return note_ok("windows", f"{ascii(model)[1:-1]}: {min(known):,} tokens, from {sources}")
    rule = f"models: [{{match: {json.dumps(model)}, context: 32768, output: 4096}}]  # its real window"
    return warn("windows", f"{ascii(model)[1:-1]}: its window is unknown, so it counts as unlimited", rule)


def _find_unlisted(model: str, listed: Mapping[str, Collection[str]]) -> Iterator[Diagnosis]:
    names = {name for some in listed.values() for name in some}
    if names and model not in names:
        what = f"{ascii(model)[1:-1]}: no upstream with a list of models has it"
        yield warn("windows", what, _suggest_names(model, names))


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
        yield warn("windows", f"{what} ({shown})", rule)


def _is_known(settings: Settings, table: ModelTable, upstream: str, name: str) -> bool:
    has_rule = any(
        rule.is_about_limits and rule.upstream in (None, upstream) and fnmatch.fnmatchcase(name, rule.match)
        for rule in settings.models
    )
    return has_rule or table.find(name) is not None
