"""Logs of requests to OpenAI's and Anthropic's APIs, as proxies, SDKs and batch files write them.

An entry is a request body alone, or an object that holds it as `body`, `request_body`, `request`,
`request.body` or `input_body`, as JSON or as text. Beside it, where they are: method and path (or a URL),
headers, status, and the response, as JSON, as text, or as the text of a stream. A file holds one entry, an
array of them (also under `interactions` or `log.entries`, as in HAR files), or one a line.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from gateway.replay.recordings import (
    CHAT_PATH,
    MESSAGES_PATH,
    RESPONSES_PATH,
    RecordedFields,
    RecordedFile,
    RecordedRequest,
    RecordedUsage,
    Recording,
    find_fields,
    find_list,
    find_object,
    find_text,
    find_value,
    read_usage,
)
from gateway.wire.reader import ResponseReader
from gateway.wire.registry import find_format

_BODY_KEYS: Final = ("body", "request_body", "requestBody", "request", "input_body", "postData", "text")
_RESPONSE_KEYS: Final = ("response", "response_body", "responseBody", "reply", "output")
_PATH_KEYS: Final = ("path", "url", "endpoint", "uri")
_STATUS_KEYS: Final = ("status", "status_code", "statusCode")
_LIST_KEYS: Final = ("interactions", "entries", "requests", "log")
# How deep a body or a path may be inside an entry.
_DEPTH: Final = 3
_FIRST_ERROR: Final = 400


class _LoggedResponse(NamedTuple):
    usage: RecordedUsage | None = None
    reply: tuple[bytes, ...] = ()
    has_failed: bool = False


def is_request_log(document: RecordedFile) -> bool:
    return any(find_body(entry) is not None for entry in _list_entries(document)[:5])


def read_request_log(document: RecordedFile, model: str) -> Recording:
    entries = _list_entries(document)
    found = [(entry, body) for entry in entries if (body := find_body(entry)) is not None]
    return Recording(
        kind="request log",
        list_requests=lambda: (_read_entry(entry, body) for entry, body in found),
        count=len(found),
        skipped=document.skipped + len(entries) - len(found),
    )


def is_single(document: RecordedFile) -> bool:
    """Whether the file is one request, so that the files of a folder make one recording."""
    return document.only is not None and len(_list_entries(document)) == 1


def _list_entries(document: RecordedFile) -> list[RecordedFields]:
    only = document.only
    if only is None:
        return document.objects
    for name in _LIST_KEYS:
        inner = find_object(only, name) or only
        entries = find_list(inner.get(name) if inner is only else inner.get("entries"))
        if entries:
            return [fields for raw in entries if (fields := find_fields(raw)) is not None]
    return [only]


def find_body(entry: RecordedFields, depth: int = _DEPTH) -> bytes | None:
    """The body of the request in an entry; None if there is none."""
    for name in _BODY_KEYS:
        raw = entry.get(name)
        plain = _decode_text(raw) if raw is not None else None
        fields = find_fields(plain) if plain is not None else None
        if plain is None or fields is None:
            continue
        if _is_body(fields):
            return plain
        inner = find_body(fields, depth - 1) if depth else None
        if inner is not None:
            return inner
    return msgspec.json.encode(entry) if _is_body(entry) else None


def _is_body(fields: RecordedFields) -> bool:
    if "model" not in fields:
        return False
    return find_list(fields.get("messages")) is not None or _is_input(fields.get("input"))


def _is_input(raw: msgspec.Raw | None) -> bool:
    """Items or a text; the input of an embedding is a list of texts or numbers."""
    if raw is None:
        return False
    items = find_list(raw)
    if items is None:
        return False
    return not items or find_fields(items[0]) is not None


def _decode_text(raw: msgspec.Raw) -> bytes | None:
    """JSON that may be written as a text."""
    if bytes(memoryview(raw)[:1]) != b'"':
        return bytes(raw)
    try:
        return msgspec.json.decode(raw, type=str).encode("utf-8", "surrogatepass")
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _read_entry(entry: RecordedFields, body: bytes) -> RecordedRequest:
    response = _read_response(entry)
    return RecordedRequest(
        path=_find_path(entry) or guess_path(find_fields(body) or {}),
        body=body,
        headers=_read_headers(entry),
        usage=response.usage,
        reply=response.reply,
        has_failed=response.has_failed,
    )


def _find_path(entry: RecordedFields, depth: int = 1) -> str | None:
    """The path of a model's API that an entry names; None if it names none."""
    for name in _PATH_KEYS:
        path = _without_base(_split_path(find_text(entry, name) or ""))
        if find_format(path) is not None:
            return path
    inner = find_object(entry, "request") if depth else None
    return _find_path(inner, depth - 1) if inner is not None else None


def _split_path(url: str) -> str:
    """Empty for a text that is no URL."""
    try:
        return urlsplit(url).path
    except ValueError:
        return ""


def _without_base(path: str) -> str:
    """A path below the base URL of some provider, such as `/api/v1/chat/completions`."""
    for known in (CHAT_PATH, MESSAGES_PATH, RESPONSES_PATH):
        if path.rstrip("/").endswith(known.removeprefix("/v1")):
            return known
    return path


def guess_path(body: RecordedFields) -> str:
    """By what only one of the APIs has."""
    if "messages" not in body:
        return RESPONSES_PATH
    if "system" in body or "anthropic_version" in body or "anthropic_beta" in body:
        return MESSAGES_PATH
    for raw in find_list(body.get("messages")) or ():
        content = find_list((find_fields(raw) or {}).get("content")) or ()
        kinds = {find_text(find_fields(part) or {}, "type") for part in content}
        if kinds & {"tool_use", "tool_result", "thinking"}:
            return MESSAGES_PATH
    return CHAT_PATH


def _read_headers(entry: RecordedFields) -> tuple[tuple[str, str], ...]:
    """An object, a list of pairs, or a list of `{name, value}`."""
    value = find_value(entry, "headers")
    if value is None:
        value = find_value(entry, "request_headers") or find_value(
            find_object(entry, "request") or {}, "headers"
        )
    if isinstance(value, dict):
        pairs: Iterator[Any] = iter(value.items())
    elif isinstance(value, list):
        pairs = (_read_pair(each) for each in value)
    else:
        return ()
    return tuple((name, text) for name, text in pairs if _is_header(name, text))


def _read_pair(value: object) -> tuple[object, object]:
    match value:
        case [name, text]:
            return name, text
        case {"name": name, "value": text}:
            return name, text
        case _:
            return None, None


def _is_header(name: object, text: object) -> bool:
    """Pseudo-headers of HTTP/2 are none."""
    return isinstance(name, str) and isinstance(text, str) and bool(name) and not name.startswith(":")


def _read_response(entry: RecordedFields) -> _LoggedResponse:
    statuses = [find_value(entry, name) for name in _STATUS_KEYS]
    for name in _RESPONSE_KEYS:
        raw = entry.get(name)
        if raw is None:
            continue
        plain = _decode_text(raw) or b""
        fields = find_fields(plain)
        if fields is None:
            return _read_stream(plain)
        statuses += [find_value(fields, each) for each in _STATUS_KEYS]
        inner = find_response(fields)
        if inner is not None:
            return inner._replace(has_failed=_has_failed(statuses) or "error" in fields or "fail" in fields)
    return _LoggedResponse(read_usage(entry), has_failed=_has_failed(statuses))


def find_response(fields: RecordedFields) -> _LoggedResponse | None:
    """A response, or an object that holds it as `body` or as `content.text`."""
    for name in ("body", "content"):
        inner = fields.get(name)
        plain = _decode_text(inner) if inner is not None else None
        if plain is not None and (within := find_fields(plain)) is not None:
            return find_response(within)
        if plain is not None and b"data:" in plain[:4_096]:
            return _read_stream(plain)
    text = fields.get("text")
    if text is not None and "usage" not in fields and (plain := _decode_text(text)) is not None:
        within = find_fields(plain)
        return find_response(within) if within is not None else _read_stream(plain)
    return _LoggedResponse(read_usage(fields), _read_reply(fields))


def _read_stream(data: bytes) -> _LoggedResponse:
    """The usage of a stream. Its reply is not put together: it comes back in the next request."""
    reader = ResponseReader("text/event-stream" if b"data:" in data[:4_096] else "", "")
    reader.feed(data)
    reading = reader.finish()
    usage = RecordedUsage(reading.usage.prompt_tokens, reading.usage.output_tokens) if reading.usage else None
    return _LoggedResponse(usage, has_failed=reading.has_error)


def _read_reply(fields: RecordedFields) -> tuple[bytes, ...]:
    """The reply in the form in which the next request repeats it."""
    choices = find_list(fields.get("choices"))
    if choices:
        message = (find_fields(choices[0]) or {}).get("message")
        return (bytes(message),) if message is not None else ()
    if find_text(fields, "role") == "assistant" and "content" in fields:
        return (b'{"role":"assistant","content":%b}' % bytes(fields["content"]),)
    return tuple(bytes(item) for item in find_list(fields.get("output")) or ())


def _has_failed(statuses: list[Any]) -> bool:
    return any(isinstance(status, int) and status >= _FIRST_ERROR for status in statuses)
