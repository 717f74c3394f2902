"""Files of bodies and messages in the forms of OpenAI's and Anthropic's APIs: logs, transcripts, exports.

A log is what proxies, SDKs and batch files write. An entry is a request body alone, or an object that holds
it as `body`, `request_body`, `request` or `request.body`, as JSON or as text. Beside it, where they are: path
or URL, headers, status, and the response, as JSON, as text, or as the text of a stream. A file holds one
entry, an array of them (also under `interactions`, `entries` or `requests`), or one a line.

A transcript is `{"messages": […], "tools": […]}`: one conversation in the form of chat messages. Optional:
`model`; `usage_by_assistant` with `{i, prompt_tokens}` for the reply that is `messages[i]`; and `response`,
the provider's answer to the last message.

An export, by `refold export`, has lines about one conversation: the version, the newest body, the numbers of
its requests, and its summaries.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from pydantic import ValidationError

from gateway.core.counts import is_count
from gateway.replay.recordings import (
    CHAT_PATH,
    MESSAGES_PATH,
    RESPONSES_PATH,
    History,
    NotARecording,
    RecordedFields,
    RecordedFile,
    RecordedRequest,
    RecordedUsage,
    Recording,
    find_fields,
    find_list,
    find_object,
    find_role,
    find_text,
    find_value,
    read_usage,
)
from gateway.settings import ModelPrice, ModelRule
from gateway.wire.reader import ResponseReader
from gateway.wire.registry import find_format

_BODY_KEYS: Final = ("body", "request_body", "requestBody", "request", "input_body")
_RESPONSE_KEYS: Final = ("response", "response_body", "responseBody", "reply", "output")
_PATH_KEYS: Final = ("path", "url", "endpoint", "uri")
_STATUS_KEYS: Final = ("status", "status_code", "statusCode")
_LIST_KEYS: Final = ("interactions", "entries", "requests")
_AROUND_PATH: Final = re.compile(r"^\w+://[^/]*|[?#].*$", re.DOTALL)
# How deep a body may be inside an entry.
_DEPTH: Final = 3
# Entries that are looked at to recognize a log.
_SAMPLE: Final = 5
_FIRST_ERROR: Final = 400
_EXPORT: Final = "gateway.export"
_VERSION: Final = 1
# What a pattern for names of models understands in another way.
_SPECIAL: Final = re.compile(r"([*?\[])")


# Logs


def is_log(document: RecordedFile) -> bool:
    return any(_find_body(entry) is not None for entry in _list_entries(document)[:_SAMPLE])


def is_single(document: RecordedFile) -> bool:
    """Whether the file is one request, so that the files of a folder make one recording."""
    return document.only is not None and len(_list_entries(document)) == 1


def read_log(document: RecordedFile, model: str) -> Recording:
    entries = _list_entries(document)
    requests = [_read_entry(entry, body) for entry in entries if (body := _find_body(entry)) is not None]
    return Recording("request log", requests, document.skipped + len(entries) - len(requests))


def _list_entries(document: RecordedFile) -> list[RecordedFields]:
    only = document.only
    if only is None:
        return document.objects
    entries = next((found for name in _LIST_KEYS if (found := find_list(only.get(name)))), None)
    if entries is None:
        return [only]
    return [fields for raw in entries if (fields := find_fields(raw)) is not None]


def _find_body(entry: RecordedFields, depth: int = _DEPTH) -> bytes | None:
    """The body of the request in an entry; None if there is none."""
    for name in _BODY_KEYS:
        plain = _decode_text(entry.get(name))
        fields = find_fields(plain)
        if plain is None or fields is None:
            continue
        if _is_body(fields):
            return plain
        inner = _find_body(fields, depth - 1) if depth else None
        if inner is not None:
            return inner
    return msgspec.json.encode(entry) if _is_body(entry) else None


def _is_body(fields: RecordedFields) -> bool:
    """The input of an embedding is a list of texts or numbers, that of the Responses API one of items."""
    if "model" not in fields:
        return False
    items = find_list(fields.get("input"))
    has_input = items is not None and (not items or find_fields(items[0]) is not None)
    return has_input or find_list(fields.get("messages")) is not None


def _decode_text(raw: msgspec.Raw | None) -> bytes | None:
    """JSON that may be written as a text."""
    if raw is None or bytes(memoryview(raw)[:1]) != b'"':
        return None if raw is None else bytes(raw)
    try:
        return msgspec.json.decode(raw, type=str).encode("utf-8", "surrogatepass")
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _read_entry(entry: RecordedFields, body: bytes) -> RecordedRequest:
    request = RecordedRequest(
        path=_find_path(entry) or _guess_path(find_fields(body) or {}),
        start=body,
        headers=_read_headers(entry),
        usage=read_usage(entry),
    )
    _add_response(request, entry)
    return request


def _find_path(entry: RecordedFields) -> str | None:
    """The path of a model's API that an entry names; None if it names none."""
    for place in (entry, find_object(entry, "request")):
        for name in _PATH_KEYS:
            path = _AROUND_PATH.sub("", find_text(place, name) or "")
            # A path below the base URL of some provider, such as `/api/v1/chat/completions`.
            known = (CHAT_PATH, MESSAGES_PATH, RESPONSES_PATH)
            ends = (each for each in known if path.rstrip("/").endswith(each.removeprefix("/v1")))
            path = next(ends, path)
            if find_format(path) is not None:
                return path
    return None


def _guess_path(body: RecordedFields) -> str:
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
    """Pseudo-headers of HTTP/2 are none."""
    own, beside = find_value(entry, "headers"), find_value(entry, "request_headers")
    places = (own, beside, find_value(find_object(entry, "request"), "headers"))
    found = next((each for each in places if isinstance(each, Mapping)), {})
    return tuple((name, text) for name, text in found.items() if name[:1] != ":" and isinstance(text, str))


def _add_response(request: RecordedRequest, entry: RecordedFields) -> None:
    """A response, or an object that holds it as its `body`."""
    statuses = [find_value(entry, name) for name in _STATUS_KEYS]
    raw = next((entry[name] for name in _RESPONSE_KEYS if name in entry), None)
    while raw is not None:
        plain = _decode_text(raw) or b""
        fields = find_fields(plain)
        if fields is None:
            _add_stream(request, plain)
            break
        statuses += [find_value(fields, name) for name in _STATUS_KEYS]
        request.has_failed |= find_value(fields, "error") is not None
        request.usage, request.reply = read_usage(fields), [*_list_reply(fields)]
        raw = fields.get("body")
    request.has_failed |= any(isinstance(status, int) and status >= _FIRST_ERROR for status in statuses)


def _add_stream(request: RecordedRequest, data: bytes) -> None:
    """The usage of a stream. Its reply is not put together: it comes back in the next request."""
    reader = ResponseReader("text/event-stream" if b"data:" in data[:4_096] else "", "")
    reader.feed(data)
    reading = reader.finish()
    usage = reading.usage
    request.usage = RecordedUsage(usage.prompt_tokens, usage.output_tokens) if usage is not None else None
    request.has_failed |= reading.has_error


def _list_reply(fields: RecordedFields) -> list[msgspec.Raw] | list[bytes]:
    """The reply in the form in which the next request repeats it."""
    choices = find_list(fields.get("choices"))
    if choices:
        message = (find_fields(choices[0]) or {}).get("message")
        return [message] if message is not None else []
    if find_text(fields, "role") == "assistant" and "content" in fields:
        return [b'{"role":"assistant","content":%b}' % bytes(fields["content"])]
    return find_list(fields.get("output")) or []


# Transcripts


def is_transcript(document: RecordedFile) -> bool:
    """A body of a request has a model and no usage; as a transcript it would be cut anew."""
    fields = document.only
    if fields is None or find_list(fields.get("messages")) is None:
        return False
    return "model" not in fields or "usage_by_assistant" in fields or "response" in fields


def read_transcript(document: RecordedFile, model: str) -> Recording:
    """Messages without a role are skipped."""
    fields = document.objects[0]
    response = find_object(fields, "response")
    named = find_text(fields, "model") or find_text(response, "model") or model
    start = [("model", msgspec.json.encode(named))]
    if find_value(fields, "tools"):
        start.append(("tools", bytes(fields["tools"])))
    messages = find_list(fields.get("messages")) or []
    said = [raw for raw in messages if find_text(find_fields(raw) or {}, "role") is not None]
    cuts, usages = _cut(CHAT_PATH, start, said), _read_usages(fields)
    for cut in cuts:
        places = range(cut.end, cut.end + len(cut.reply))
        found = next((usages[at] for at in places if at in usages), None)
        cut.usage = found if cut.reply else read_usage(response)
    return Recording("transcript", cuts, len(messages) - len(said))


def _cut(
    path: str, fields: Iterable[tuple[str, bytes]], items: Iterable[msgspec.Raw]
) -> list[RecordedRequest]:
    """fields: of the body, before the history."""
    history = History(path, fields)
    for raw in items:
        history.add(bytes(raw), is_reply=find_role(find_fields(raw) or {}) == "assistant")
    history.finish()
    return history.cuts


def _read_usages(fields: RecordedFields) -> dict[int, RecordedUsage]:
    """By the position of the reply. Sessions log the output at the beginning of its stream, so it is counted
    anew.
    """
    found = {}
    for raw in find_list(fields.get("usage_by_assistant")) or ():
        step = find_fields(raw) or {}
        position, tokens = find_value(step, "i"), find_value(step, "prompt_tokens")
        if is_count(position) and is_count(tokens) and tokens > 0:
            found[position] = RecordedUsage(tokens)
    return found


# Exports


def is_export(document: RecordedFile) -> bool:
    return find_text(document.objects[0], "type") == _EXPORT


def read_export(document: RecordedFile, model: str) -> Recording:
    """Where a cut has as many messages as one of the recorded requests, that one's usage is used. Raises
    NotARecording for a version that came later.
    """
    version = find_value(document.objects[0], "version")
    if version != _VERSION:
        raise NotARecording(f"it is an export of version {version!r}; this gateway reads version {_VERSION}")
    body = next((found for line in document.objects if (found := find_object(line, "body"))), {})
    path = _guess_path(body)
    name = "input" if path == RESPONSES_PATH else "messages"
    items = find_list(body.get(name)) or []
    cuts = _cut(path, [(key, bytes(raw)) for key, raw in body.items() if key != name], items)
    roles = (find_text(find_fields(raw) or {}, "role") for raw in items)
    # Messages before those that a history counts.
    leading = next((at for at, role in enumerate(roles) if role not in ("system", "developer")), len(items))
    usages = dict(map(_read_counted, document.objects))
    for cut in cuts:
        cut.usage = usages.get(cut.end - leading)
    return Recording("gateway export", cuts, document.skipped)


def _read_counted(line: RecordedFields) -> tuple[int | None, RecordedUsage | None]:
    """The number of messages of a request, and its usage; None for both if the line has none."""
    if find_text(line, "type") != "request":
        return None, None
    # Of a changed request the upstream has counted what was sent; what came is the gateway's own estimate.
    is_unchanged = find_text(line, "plan") == "passthrough"
    prompt = find_value(line, "prompt_tokens" if is_unchanged else "received")
    messages, output = find_value(line, "messages"), find_value(line, "output_tokens")
    if not (is_count(messages) and is_count(prompt) and prompt > 0):
        return None, None
    return messages, RecordedUsage(prompt, output if is_count(output) else None)


def read_rule(document: RecordedFile) -> ModelRule | None:
    """The window and the price that the model had where the exported conversation took place."""
    fields = document.objects[0]
    limits, model = find_value(fields, "limits"), find_text(fields, "model")
    price: Any = find_value(fields, "price")
    try:
        return ModelRule(
            match=_SPECIAL.sub(r"[\1]", model or ""),
            price=ModelPrice(**price) if price is not None else None,
            **(limits or {}),
        )
    except (TypeError, ValidationError):
        # From an earlier version, or of a model whose name no pattern can have.
        return None
