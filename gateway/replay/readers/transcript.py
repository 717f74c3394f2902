"""`{"messages": […], "tools": […]}`: one conversation in the form of chat messages.

The requests are cut before each message of the assistant; one right behind another belongs to the same
reply. Optional: `model`; `usage_by_assistant` with `{i, prompt_tokens, cached_tokens, completion_tokens}` for
the reply that is `messages[i]`; and `response`, the provider's answer to the last message.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from gateway.core.counts import is_count
from gateway.replay.bodies import GrowingBody
from gateway.replay.readers.document import (
    RecordedFields,
    RecordedFile,
    find_fields,
    find_list,
    find_object,
    find_text,
    find_value,
)
from gateway.replay.recording import CHAT_PATH, RecordedRequest, RecordedUsage, Recording
from gateway.wire.usage import find_usage

KIND: Final = "transcript"
_ASSISTANT: Final = "assistant"
_EMPTY: Final = (b"null", b"[]")


class _TranscriptMessage(NamedTuple):
    role: str
    raw: bytes


def claims(document: RecordedFile) -> bool:
    """A body of a request has a model and no usage; as a transcript it would be cut anew."""
    fields = document.only
    if fields is None or find_list(fields.get("messages")) is None:
        return False
    return "model" not in fields or "usage_by_assistant" in fields or "response" in fields


def read(document: RecordedFile, model: str) -> Recording:
    """model: of recordings that name none."""
    fields = document.objects[0]
    messages = _read_messages(fields)
    cuts = find_cuts([message.role for message in messages])
    skipped = len(find_list(fields.get("messages")) or ()) - len(messages)
    return Recording(
        kind=KIND,
        list_requests=lambda: _list_requests(fields, messages, cuts, model),
        count=len(cuts),
        skipped=skipped,
    )


def _read_messages(fields: RecordedFields) -> list[_TranscriptMessage]:
    """Those that have a role."""
    messages = []
    for raw in find_list(fields.get("messages")) or ():
        role = find_text(find_fields(raw) or {}, "role")
        if role is not None:
            messages.append(_TranscriptMessage(role, bytes(raw)))
    return messages


def find_cuts(roles: Sequence[str]) -> list[int]:
    """How many messages each request holds: all before a reply, and all if the last one has no reply."""
    cuts = [
        position
        for position, role in enumerate(roles)
        if role == _ASSISTANT and position and roles[position - 1] != _ASSISTANT
    ]
    return [*cuts, len(roles)] if roles and roles[-1] != _ASSISTANT else cuts


def find_reply_end(roles: Sequence[str], start: int) -> int:
    """Where the reply ends that begins at a position."""
    end = start
    while end < len(roles) and roles[end] == _ASSISTANT:
        end += 1
    return end


def _list_requests(
    fields: RecordedFields, messages: Sequence[_TranscriptMessage], cuts: Sequence[int], model: str
) -> Iterator[RecordedRequest]:
    response = find_object(fields, "response") or {}
    named = find_text(fields, "model") or find_text(response, "model") or model
    before = [("model", msgspec.json.encode(named))]
    tools = bytes(fields.get("tools", b"null"))
    body = GrowingBody([*before, *([("tools", tools)] if tools not in _EMPTY else [])], "messages")
    raws, roles = [message.raw for message in messages], [message.role for message in messages]
    usages, done = _read_usages(fields), 0
    for cut in cuts:
        body.add(raws[done:cut])
        done, end = cut, find_reply_end(roles, cut)
        usage = next((usages[at] for at in range(cut, end) if at in usages), None)
        if cut == len(raws):
            usage = _read_usage(find_value(response, "usage"))
        yield RecordedRequest(path=CHAT_PATH, body=body.render(), usage=usage, reply=tuple(raws[cut:end]))


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


def _read_usage(value: object) -> RecordedUsage | None:
    found = find_usage(value) if isinstance(value, dict) else None
    return RecordedUsage(found.prompt_tokens, found.output_tokens) if found is not None else None
