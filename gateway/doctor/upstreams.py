"""Upstreams: is each there, does it accept the key, which models does it list, does it stream, and is the
window of each model known? Without a window nothing is compacted before the upstream refuses.
"""

import asyncio
import difflib
import fnmatch
import json
import socket
import ssl
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from gateway.activity.prices import PriceList, load_price_table
from gateway.command_line.model_report import describe_model
from gateway.core.money import count_usd
from gateway.doctor.finding import Diagnosis, Examined, UpstreamReport, blame, note_ok, warn
from gateway.http.client import Client, Fetched, OwnCall
from gateway.http.failures import CALL_ERRORS, describe_failure, list_causes
from gateway.http.target import make_url
from gateway.limits.book import ModelTable
from gateway.limits.discovery import (
    KEY_WANTED,
    LIST_PATH,
    REDIRECTS,
    find_other_url,
    make_list_headers,
    probe,
)
from gateway.settings import FormatName, Settings, UpstreamSettings
from gateway.wire.model_list import MAX_BYTES, list_model_names
from gateway.wire.reader import ResponseReader

# OpenSSL's numbers of what is wrong with a certificate, X509_V_ERR_….
_EXPIRED, _SELF_SIGNED, _UNKNOWN_AUTHORITY, _OTHER_NAME = 10, 18, (19, 20, 21), (62, 64)


async def check_upstreams(examined: Examined) -> AsyncIterator[Diagnosis]:
    for report in examined.reports.values():
        yield report.finding


async def examine_upstream(client: Client, upstream: UpstreamSettings) -> UpstreamReport:
    found, other = await probe(upstream, client)
    if found.error is not None:
        return UpstreamReport(_explain(upstream, found.error), is_usable=False)
    date = found.date
    if found.limits is not None and found.is_api:
        names = list_model_names(found.body)
        key = "accepts its api_key" if upstream.api_key is not None else "answers without a key"
        what = (
            f"{upstream.name}: {key}; lists {len(names):,} models, {len(found.limits):,} with their windows"
        )
        return UpstreamReport(note_ok(what), names, date)
    if found.status in KEY_WANTED:
        finding = _describe_key(upstream, found.status)
        return UpstreamReport(finding, date=date, is_usable=upstream.api_key is None)
    if found.status in REDIRECTS:
        # The upstream chooses where to, so it is shown as an ASCII literal.
        place = found.place.removesuffix(LIST_PATH)
        what = f"{upstream.name}: redirects to {place!a}, which is not followed"
        finding = blame(what, f"base_url: {ascii(place)[1:-1]}" if place else "correct its base_url")
        return UpstreamReport(finding, date=date, is_usable=False)
    has_other = other is not None and other.is_api
    finding = _describe_no_list(upstream, found.status, has_other=has_other)
    return UpstreamReport(finding, date=date, is_usable=found.status != 200 and not has_other)


def _describe_no_list(upstream: UpstreamSettings, status: int, *, has_other: bool) -> Diagnosis:
    """has_other: whether an API answers at the likely other address."""
    base_url = upstream.base_url
    what = f"{upstream.name}: {base_url + LIST_PATH} is not a list of models (status {status})"
    if has_other:
        other_url = find_other_url(base_url)
        return blame(f"{what}, and {other_url + LIST_PATH} is", f"base_url: {other_url}")
    if status == 200:
        return blame(f"{what} but a web page", f"correct upstreams.{upstream.name}.base_url")
    if status >= 500:
        return warn(what, f"look at its log; curl -i {base_url + LIST_PATH}")
    rule = f'models: [{{match: "NAME", upstream: {upstream.name}, context: 32768}}]'
    return warn(what, f"{rule}  # names the windows instead")


def _describe_key(upstream: UpstreamSettings, status: int) -> Diagnosis:
    if upstream.api_key is None:
        what = f"{upstream.name}: is there, and wants the key of each caller (status {status})"
        return note_ok(what)
    what = f"{upstream.name}: refuses its api_key (status {status})"
    return blame(what, f"upstreams.{upstream.name}.api_key: ${{A_VALID_KEY}}  # from the environment")


# Why no response came: the name, the port, the certificate, or time


def _explain(upstream: UpstreamSettings, error: BaseException) -> Diagnosis:
    """Why no response came."""
    what = f"{upstream.name}: {describe_failure(error, upstream.base_url)}"
    return blame(what, _choose_fix(upstream, list(list_causes(error))))


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
# By format: where a model is asked, and for what. 16 is the smallest reply that the API of OpenAI lets one
# ask for in its format.
_QUESTIONS: Final[Mapping[FormatName, tuple[str, Mapping[str, Any]]]] = {
    "chat": (
        "/chat/completions",
        {"messages": _HELLO, "max_tokens": 1, "stream": True, "stream_options": {"include_usage": True}},
    ),
    "responses": ("/responses", {"input": "Hi", "max_output_tokens": 16, "stream": True}),
    "messages": ("/messages", {"messages": _HELLO, "max_tokens": 1, "stream": True}),
}
_NEWER_NAME: Final = "max_completion_tokens"
_SHOWN_NAMES: Final = 3
_TIMEOUT_SECONDS: Final = 10.0


async def check_streaming(examined: Examined) -> AsyncIterator[Diagnosis]:
    """If a model may be asked: for one token, which is billed, at each upstream that can be reached."""
    model, reports = examined.asked, examined.reports
    if model is None:
        return
    usable = [each for name, each in examined.settings.upstreams.items() if reports[name].is_usable]
    for finding in await asyncio.gather(*(_examine_stream(examined, each, model) for each in usable)):
        yield finding


async def _examine_stream(examined: Examined, upstream: UpstreamSettings, model: str) -> Diagnosis:
    try:
        response = await _ask(examined.client, upstream, model)
    except CALL_ERRORS as error:
        return _explain(upstream, error)
    if response.status == 200:
        return _describe_stream(examined.settings, upstream, model, response)
    return _describe_refusal(upstream, model, response, examined.reports[upstream.name].names)


async def _ask(client: Client, upstream: UpstreamSettings, model: str) -> Fetched:
    """Raises one of CALL_ERRORS."""
    path, question = next(asked for name, asked in _QUESTIONS.items() if name in upstream.formats)
    headers = [*make_list_headers(upstream, ()), ("Content-Type", "application/json")]
    url, body = str(make_url(upstream, path)), {"model": model, **question}
    while True:
        call = OwnCall(upstream, "POST", url, headers, msgspec.json.encode(body))
        response = await client.fetch(call, _TIMEOUT_SECONDS, MAX_BYTES)
        is_newer = response.status == 400 and _NEWER_NAME.encode() in (response.body or b"")
        if not is_newer or body.pop("max_tokens", None) is None:
            return response
        body[_NEWER_NAME] = 1


def _describe_stream(
    settings: Settings, upstream: UpstreamSettings, model: str, response: Fetched
) -> Diagnosis:
    place = f"{model} at {upstream.name}"
    if "text/event-stream" not in response.headers.get("content-type", ""):
        fix = f"turn off buffering in a proxy before {upstream.name}; the answer was asked for as a stream"
        return warn(f"{place}: did not stream its answer", fix)
    reader = ResponseReader("text/event-stream", "")
    reader.feed(response.body or b"")
    usage = reader.finish().usage
    if usage is None:
        fix = f"upgrade the server of {upstream.name} to one that knows stream_options.include_usage"
        return warn(f"{place}: streams without usage, so sizes are estimates and costs unknown", fix)
    what = f"this question cost {usage.prompt_tokens} + {usage.output_tokens} tokens"
    price = PriceList(settings, load_price_table()).find(model, upstream.name)
    if price is not None:
        what += f", some ${count_usd(price, usage):.6f}"
    return note_ok(f"{place}: streams, with usage; {what}")


def _describe_refusal(
    upstream: UpstreamSettings, model: str, response: Fetched, names: Collection[str]
) -> Diagnosis:
    place = f"{model} at {upstream.name}"
    if response.status in (401, 403):
        if upstream.api_key is None:
            return note_ok(f"{place}: not tried, as each caller has a key of its own")
        fix = f"upstreams.{upstream.name}.api_key: ${{A_KEY_THAT_MAY_USE_IT}}"
        return blame(f"{place}: its api_key may not use the model (status {response.status})", fix)
    if response.status == 429:
        fix = "wait, or raise the limits of this account at the provider"
        return warn(f"{place}: its limit or quota is used up (status 429)", fix)
    if names and model not in names:
        return blame(f"{place}: the upstream knows no such model", _suggest_names(model, names))
    fix = f"curl -i {upstream.base_url}/models  # is {model} among them?"
    return blame(f"{place}: a request of one word was refused (status {response.status})", fix)


def _suggest_names(model: str, names: Collection[str]) -> str:
    """The fix for a model that a list lacks."""
    near = difflib.get_close_matches(model, names, _SHOWN_NAMES, 0.4) or sorted(names)[:_SHOWN_NAMES]
    return f"use a model that it lists, such as {', '.join(map(ascii, near))}"


# Is the window of each model known?

_WILDCARDS: Final = frozenset("*?[")
_SHOWN: Final = 4
# Lists of more models are those of whole markets.
_MOST_LISTED: Final = 100


async def check_windows(examined: Examined) -> AsyncIterator[Diagnosis]:
    """Of the models that clients use, those that rules name, and those of upstreams with a short list."""
    settings, models = examined.settings, examined.models
    exact = [rule.match for rule in settings.models if not _WILDCARDS & set(rule.match)]
    listed = {name for report in examined.reports.values() for name in report.names}
    unknown = [
        finding
        for upstream, report in examined.reports.items()
        for finding in _examine_list(settings, upstream, report.names)
    ]
    for model in dict.fromkeys([*models, *exact]):
        yield await _examine_model(settings, model)
        if model in models and listed and model not in listed:
            what = f"{ascii(model)[1:-1]}: no upstream with a list of models has it"
            yield warn(what, _suggest_names(model, listed))
    for finding in unknown:
        yield finding
    if not (models or exact or unknown):
        yield note_ok("no model was named; --model NAME says whether its window is known")


async def _examine_model(settings: Settings, model: str) -> Diagnosis:
    asks = any(each.discover for each in settings.upstreams.values())
    report = await describe_model(settings, model, asks=asks)
    known = [tokens for place in report.upstreams if (tokens := place.context or place.input)]
    if not known:
        what = f"{ascii(model)[1:-1]}: its window is unknown, so it counts as unlimited"
        return warn(what, _suggest_rule(model))
    sources = dict.fromkeys(place.source for place in report.upstreams if place.source != "unknown")
    return note_ok(f"{ascii(model)[1:-1]}: {min(known):,} tokens, from {', '.join(sources)}")


def _suggest_rule(model: str) -> str:
    return f"models: [{{match: {json.dumps(model)}, context: 32768, output: 4096}}]  # its real window"


def _examine_list(settings: Settings, upstream: str, names: Collection[str]) -> Iterator[Diagnosis]:
    """Of a short list, the models that no rule and no table knows."""
    if len(names) > _MOST_LISTED:
        return
    table = ModelTable.load()
    unknown = sorted(name for name in names if not _is_known(settings, table, upstream, name))
    if unknown:
        shown = ", ".join(ascii(name)[1:-1] for name in unknown[:_SHOWN])
        what = f"no rule and no table knows the windows of {len(unknown)} of its {len(names)} models"
        yield warn(f"{upstream}: {what} ({shown})", _suggest_rule(unknown[0]))


def _is_known(settings: Settings, table: ModelTable, upstream: str, name: str) -> bool:
    has_rule = any(
        rule.is_about_limits and rule.upstream in (None, upstream) and fnmatch.fnmatchcase(name, rule.match)
        for rule in settings.models
    )
    return has_rule or table.find(name) is not None
