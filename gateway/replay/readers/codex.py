"""Rollouts of Codex (`~/.codex/sessions/**/rollout-*.jsonl`), as requests of the Responses API.

Each line has a type and a payload; in older files a line is the item itself. Items of the model in a row are
one reply, and a request holds everything before it. Usage comes in an event behind the reply. At `compacted`
the history begins anew: with the one that the line gives, or with the person's messages and the summary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

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
from gateway.replay.recording import RESPONSES_PATH, RecordedRequest, RecordedUsage, Recording
from gateway.wire.usage import find_usage

KIND: Final = "Codex rollout"
_LINE_TYPES: Final = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
# What the model writes, and what the client adds to it.
_OF_THE_MODEL: Final = frozenset(
    {
        "reasoning",
        "function_call",
        "custom_tool_call",
        "local_shell_call",
        "web_search_call",
        "tool_search_call",
    }
)
_OF_THE_CLIENT: Final = frozenset(
    {"function_call_output", "custom_tool_call_output", "local_shell_call_output", "tool_search_output"}
)


@dataclass(slots=True)
class _Answered:
    """A request: the items before its reply, and what is known of it."""

    items: tuple[bytes, ...]
    model: str
    instructions: str | None
    reply: list[bytes] = field(default_factory=list)
    usage: RecordedUsage | None = None


def claims(document: RecordedFile) -> bool:
    if not document.is_lines:
        return False
    if any(find_text(line, "type") in _LINE_TYPES and "payload" in line for line in document.sample):
        return True
    # Before lines had payloads: what a session is, then its items.
    first = document.objects[0]
    is_old = "id" in first and "timestamp" in first and "instructions" in first
    return is_old and any(_is_item(line) for line in document.sample[1:])


def read(document: RecordedFile, model: str) -> Recording:
    requests = _Rollout(model).read(document.objects)
    return Recording(
        kind=KIND,
        list_requests=lambda: _render_all(requests),
        count=len(requests),
        skipped=document.skipped,
    )


class _Rollout:
    def __init__(self, model: str) -> None:
        self._model = model
        self._instructions: str | None = None
        self._items: list[bytes] = []
        self._requests: list[_Answered] = []
        # Whether the newest item is of the model.
        self._is_replying = False

    def read(self, lines: Sequence[RecordedFields]) -> list[_Answered]:
        for line in lines:
            payload = find_object(line, "payload")
            if payload is None:
                self._read_old(line)
            else:
                self._read_line(find_text(line, "type") or "", payload, line["payload"])
        return self._requests

    def _read_old(self, line: RecordedFields) -> None:
        if _is_item(line):
            self._add(
                line, b"{%b}" % b",".join(msgspec.json.encode(k) + b":" + bytes(v) for k, v in line.items())
            )
        else:
            self._instructions = find_text(line, "instructions") or self._instructions

    def _read_line(self, kind: str, payload: RecordedFields, raw: msgspec.Raw) -> None:
        match kind:
            case "session_meta":
                base = find_object(payload, "base_instructions") or {}
                self._instructions = find_text(payload, "instructions") or find_text(base, "text")
            case "turn_context":
                self._model = find_text(payload, "model") or self._model
            case "response_item" if _is_item(payload):
                self._add(payload, bytes(raw))
            case "event_msg" if find_text(payload, "type") == "token_count":
                self._note_usage(payload)
            case "compacted":
                self._compact(payload)

    def _add(self, item: RecordedFields, raw: bytes) -> None:
        if not _is_of_model(item):
            self._is_replying = False
        elif self._items:
            if not self._is_replying:
                self._requests.append(_Answered(tuple(self._items), self._model, self._instructions))
            self._is_replying = True
            self._requests[-1].reply.append(raw)
        self._items.append(raw)

    def _note_usage(self, payload: RecordedFields) -> None:
        usage = find_value(find_object(payload, "info") or {}, "last_token_usage")
        found = find_usage(usage) if isinstance(usage, dict) else None
        if found is not None and self._requests:
            self._requests[-1].usage = RecordedUsage(found.prompt_tokens, found.output_tokens)

    def _compact(self, payload: RecordedFields) -> None:
        self._is_replying = False
        given = find_list(payload.get("replacement_history"))
        if given is not None:
            self._items = [bytes(raw) for raw in given]
            return
        summary = {"type": "input_text", "text": find_text(payload, "message") or ""}
        message = {"type": "message", "role": "user", "content": [summary]}
        self._items = [raw for raw in self._items if _is_of_person(raw)] + [msgspec.json.encode(message)]


def _is_item(fields: RecordedFields) -> bool:
    kind = find_text(fields, "type")
    return kind == "message" or kind in _OF_THE_MODEL or kind in _OF_THE_CLIENT


def _is_of_model(item: RecordedFields) -> bool:
    if find_text(item, "type") == "message":
        return find_text(item, "role") == "assistant"
    return find_text(item, "type") in _OF_THE_MODEL


def _is_of_person(raw: bytes) -> bool:
    item = find_fields(raw) or {}
    return find_text(item, "type") == "message" and find_text(item, "role") != "assistant"


def _render_all(requests: Sequence[_Answered]) -> Iterator[RecordedRequest]:
    for each in requests:
        # The upstream stores nothing of it, so every request brings the whole history.
        fields = [("model", msgspec.json.encode(each.model)), ("store", b"false")]
        if each.instructions:
            fields.append(("instructions", msgspec.json.encode(each.instructions)))
        body = GrowingBody(fields, "input")
        body.add(each.items)
        yield RecordedRequest(
            path=RESPONSES_PATH, body=body.render(), usage=each.usage, reply=tuple(each.reply)
        )
