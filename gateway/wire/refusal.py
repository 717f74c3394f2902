"""Parses error responses, in every shape that upstreams use, into the texts of a Refusal.

Reads OpenAI's and Anthropic's error objects, FastAPI's `detail`, Bedrock, MiniMax, routers that nest another
upstream's error as a string, HTML and plain text, as a body or as an event of a stream. Takes only fields
with the upstream's own words, because validation errors echo the request in other fields. `core.refusal`
decides what the words mean.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Final

from gateway.core.refusal import Refusal
from gateway.wire.reading import (
    JsonObject,
    ResponseDocument,
    has_content,
    has_error,
    is_window_exceeded,
    list_finish_reasons,
    read_documents,
    read_value,
)
from gateway.wire.sse import SseEvent

_GOOD_STATUSES = range(200, 400)
_MAX_TEXTS = 24
_DEEPEST = 8
_LARGEST_NUMBER = 10**12  # a code, or a number of tokens
# The start and the end of a body that is not JSON, this many bytes of each: more than `core.refusal` reads.
_READ_BYTES = 32 * 1024
# Most trusted first, compared in lower case. AWS writes `Message`, MiniMax `base_resp.status_msg`.
_KEYS = (
    *("message", "msg", "error", "detail", "details", "errors", "error_message", "errormessage"),
    *("status_msg", "error_msg", "errmsg", "error_description", "fault", "faultstring", "exception"),
    *("code", "type", "__type", "error_code", "error_type", "status", "status_code"),
    *("metadata", "raw", "response", "innererror", "base_resp", "choices", "reason", "description", "title"),
)
# llama.cpp gives its numbers in fields of their own.
_NUMBER_KEYS = ("n_prompt_tokens", "n_ctx")
# Gateways and clouds report an unknown model with any of these statuses.
MODEL_ERROR_STATUSES: Final = frozenset({400, 403, 404, 422})
_MODEL_CODES: Final = frozenset({"model_not_found", "model_not_available", "invalid_model"})
_MODEL_PHRASES: Final = (
    *("not found", "not exist", "not a valid", "invalid model", "unknown model", "no such model"),
    *("not supported", "unsupported", "not available", "unavailable", "access"),
)


def parse_refusal(status: int, body: bytes) -> Refusal | None:
    """The refusal in a decoded body. None if it is no error: a good status, and no error in the body.

    An error in a response with a good status keeps that status. Never raises.
    """
    if status not in _GOOD_STATUSES:
        return Refusal(status, _parse_texts(body), is_empty=not body.strip())
    return _find_refusal(status, [body])


def parse_event_refusal(event: SseEvent) -> Refusal | None:
    """The refusal in an event of a stream, or in a whole body: an error, or an end because the window is
    full. Never raises.
    """
    if event.name == "error":
        return Refusal(200, _parse_texts(event.data))
    # A server that sends no blank lines: its events arrive as the lines of one.
    is_several = bool(event.name) and read_documents(event.data) is None
    return _find_refusal(200, event.data.split(b"\n") if is_several else [event.data])


def is_model_unknown(status: int, body: bytes, model: str) -> bool:
    """Whether the error says that the upstream does not offer this model.

    In this order: any 404; a known code; a text with the model's name and a known phrase. Never raises. After
    a wrong yes, another model is tried in vain.
    """
    if status not in MODEL_ERROR_STATUSES:
        return False
    refusal = parse_refusal(status, body)
    texts = [text.lower() for text in refusal.texts] if refusal is not None else []
    if status == 404 or _MODEL_CODES.intersection(texts):
        return True
    return any(model.lower() in text and any(phrase in text for phrase in _MODEL_PHRASES) for text in texts)


def _find_refusal(status: int, parts: list[bytes]) -> Refusal | None:
    found = [each for part in parts for each in _read_both(part)]
    errors = [fields for document, fields in found if _is_error(document, fields)]
    if errors:
        return Refusal(status, tuple(islice(chain.from_iterable(map(_texts_of, errors)), _MAX_TEXTS)))
    # A response that ends because the window is full, without any part of a reply.
    if any(has_content(document) for document, _ in found):
        return None
    reasons = (reason for document, _ in found for reason in list_finish_reasons(document))
    reason = next(filter(is_window_exceeded, reasons), None)
    return Refusal(status, (reason,)) if reason else None


def _read_both(data: bytes) -> list[tuple[ResponseDocument, JsonObject]]:
    """Each JSON object as any response is read, and all of its fields; of what is large only the error."""
    documents = read_documents(data) or []
    value = read_value(data)
    fields = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, dict)]
    if len(fields) != len(documents):
        fields = [{"error": read_value(document.error)} for document in documents]
    return list(zip(documents, fields, strict=True))


def _is_error(document: ResponseDocument, fields: JsonObject) -> bool:
    if has_error(document) or document.type in ("response.failed", "response.error"):
        return True
    if "choices" in fields or "usage" in fields:
        return _has_minimax_error(fields)
    has_own_shape = isinstance(fields.get("message"), str) and ("code" in fields or "__type" in fields)
    return has_own_shape or bool(fields.get("errors") or fields.get("detail")) or _has_minimax_error(fields)


def _has_minimax_error(fields: JsonObject) -> bool:
    state = fields.get("base_resp")
    return isinstance(state, dict) and state.get("status_code") not in (None, 0)


def _parse_texts(body: bytes) -> tuple[str, ...]:
    value = read_value(body)
    if value is None:
        text = _bounded(body).decode("utf-8", "replace").strip()
        return (text,) if text else ()
    return tuple(islice(_texts_of(value), _MAX_TEXTS))


def _bounded(body: bytes) -> bytes:
    return body if len(body) <= 2 * _READ_BYTES else body[:_READ_BYTES] + b"\n" + body[-_READ_BYTES:]


def _texts_of(value: object, depth: int = 0) -> Iterator[str]:
    """Every text under a known key, the least nested first."""
    if depth > _DEEPEST:
        return
    if isinstance(value, str):
        yield from _texts_of_string(value, depth)
    elif _is_number(value):
        yield str(value)
    elif isinstance(value, list):
        for item in value[:_MAX_TEXTS]:
            yield from _texts_of(item, depth + 1)
    elif isinstance(value, Mapping):
        yield from _texts_of_object(value, depth)


def _texts_of_string(value: str, depth: int) -> Iterator[str]:
    """A string may be the JSON document of another upstream."""
    nested = read_value(value.encode("utf-8", "replace")) if value.lstrip()[:1] in ("{", "[") else None
    if nested is not None and (texts := list(islice(_texts_of(nested, depth + 1), _MAX_TEXTS))):
        yield from texts
    elif value.strip():
        yield value


def _texts_of_object(value: Mapping[object, object], depth: int) -> Iterator[str]:
    by_name = {str(key).lower(): item for key, item in value.items()}
    for key in _KEYS:
        if key in by_name:
            yield from _texts_of(by_name[key], depth + 1)
    for key in _NUMBER_KEYS:
        if _is_number(by_name.get(key)):
            yield f"{key}: {by_name[key]}"


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST_NUMBER
