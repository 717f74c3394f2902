"""Does a model answer in a stream, and with usage? It takes one request of one word, which is billed."""

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import msgspec

from gateway.activity.prices import load_price_table, make_price_list
from gateway.core.counts import is_count
from gateway.core.money import count_usd
from gateway.core.sizing.usage import Usage
from gateway.doctor.finding import Diagnosis, blame, note_ok, warn
from gateway.doctor.reaching import reach
from gateway.http.client import Client, Fetched, OwnCall
from gateway.http.target import make_url
from gateway.limits.discovery import make_list_headers
from gateway.settings import FormatName, Settings, UpstreamSettings
from gateway.wire.model_list import MAX_BYTES

_SUBJECT: Final = "streaming"
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
    """names: the models that the upstream lists."""
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
    return await reach(upstream, client.fetch(call, _TIMEOUT_SECONDS, MAX_BYTES))


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
        return warn(_SUBJECT, f"{place}: did not stream its answer", fix)
    usage = _find_usage(response.body or b"")
    if usage is None:
        fix = f"upgrade the server of {upstream.name} to one that knows stream_options.include_usage"
        return warn(
            _SUBJECT, f"{place}: streams without usage, so sizes are estimates and costs unknown", fix
        )
    return note_ok(
        _SUBJECT, f"{place}: streams, with usage; {_describe_cost(settings, upstream, model, usage)}"
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
            return note_ok(_SUBJECT, f"{place}: not tried, as each caller has a key of its own")
        fix = f"upstreams.{upstream.name}.api_key: ${{A_KEY_THAT_MAY_USE_IT}}"
        return blame(_SUBJECT, f"{place}: its api_key may not use the model (status {response.status})", fix)
    if response.status == 429:
        fix = "wait, or raise the limits of this account at the provider"
        return warn(_SUBJECT, f"{place}: its limit or quota is used up (status 429)", fix)
    if names and model not in names:
        return blame(_SUBJECT, f"{place}: the upstream knows no such model", suggest_names(model, names))
    fix = f"curl -i {upstream.base_url}/models  # is {model} among them?"
    return blame(_SUBJECT, f"{place}: a request of one word was refused (status {response.status})", fix)


def suggest_names(model: str, names: Collection[str]) -> str:
    """The fix for a model that a list lacks."""
    near = difflib.get_close_matches(model, names, _SHOWN_NAMES, 0.4) or sorted(names)[:_SHOWN_NAMES]
    return f"use a model that it lists, such as {', '.join(map(ascii, near))}"


def _find_usage(body: bytes) -> Usage | None:
    """The largest numbers of all events: Anthropic reports prompt and output in two of them."""
    prompts, outputs = [], []
    for value in _list_usages(body):
        prompts.append(_read(value, "prompt_tokens", "input_tokens"))
        outputs.append(_read(value, "completion_tokens", "output_tokens"))
    return Usage(prompt_tokens=max(prompts), output_tokens=max(outputs)) if prompts else None


def _read(value: Mapping[str, Any], *names: str) -> int:
    return next((value[name] for name in names if is_count(value.get(name))), 0)


def _list_usages(body: bytes) -> Iterator[Mapping[str, Any]]:
    for line in body.splitlines():
        if not line.startswith(b"data:"):
            continue
        try:
            event: Any = msgspec.json.decode(line.removeprefix(b"data:").strip())
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        holders = [event, event.get("response"), event.get("message")] if isinstance(event, dict) else []
        for holder in holders:
            if isinstance(holder, dict) and isinstance(usage := holder.get("usage"), dict):
                yield usage
