"""Sessions of opencode, as chat requests: what `opencode export` writes, and the files under its `storage`.

A session has messages, and each message parts: texts, reasoning, and calls of tools with their results. A
step of the model begins at each `step-start`. A reply that is a summary takes the place of everything before
it. In `storage` each message and each part is a file of its own, and names its session.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

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

KIND: Final = "opencode session"
_ASSISTANT: Final = "assistant"
# Of a message that the client has written without a text, such as its request for a summary.
_NO_TEXT: Final = "(no text)"
_SESSION_HEADER: Final = "x-session-id"
_SESSION_PREFIX: Final = "ses_"


@dataclass(slots=True)
class _Turn:
    """A message with its parts, in their order."""

    info: RecordedFields
    parts: list[RecordedFields] = field(default_factory=list)


@dataclass(slots=True)
class _Step:
    """One reply of the model, and the results of its calls."""

    text: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    usage: RecordedUsage | None = None

    @property
    def messages(self) -> list[dict[str, Any]]:
        calls = {"tool_calls": self.calls} if self.calls else {}
        return [{"role": _ASSISTANT, "content": self.text or None, **calls}, *self.results]


@dataclass(frozen=True, slots=True)
class _StepRequest:
    """A request that is not rendered yet: all bodies together are many times the file."""

    history: tuple[bytes, ...]
    step: _Step
    model: str
    session: str


def claims(document: RecordedFile) -> bool:
    only = document.only
    if only is not None and find_list(only.get("messages")) is not None:
        return "info" in only
    return any(find_group(fields) is not None for fields in document.sample)


def find_group(fields: RecordedFields) -> str | None:
    """The session that a file of the storage belongs to."""
    name = find_text(fields, "sessionID")
    if name is not None and ("role" in fields or "messageID" in fields):
        return name
    own = find_text(fields, "id")
    return own if own is not None and own.startswith(_SESSION_PREFIX) and "projectID" in fields else None


def read(document: RecordedFile, model: str) -> Recording:
    turns = _read_export(document.objects[0]) if _is_export(document) else _read_storage(document.objects)
    asked = [*_list_asked(turns, model)]
    return Recording(
        kind=KIND, list_requests=lambda: map(_render, asked), count=len(asked), skipped=document.skipped
    )


def _is_export(document: RecordedFile) -> bool:
    return document.only is not None and "messages" in document.objects[0]


def _read_export(fields: RecordedFields) -> list[_Turn]:
    turns = []
    for raw in find_list(fields.get("messages")) or ():
        message = find_fields(raw) or {}
        parts = [find_fields(part) or {} for part in find_list(message.get("parts")) or ()]
        turns.append(_Turn(find_object(message, "info") or {}, parts))
    return turns


def _read_storage(files: Sequence[RecordedFields]) -> list[_Turn]:
    """Ids ascend with the time."""
    messages = {find_text(each, "id") or "": _Turn(each) for each in files if "role" in each}
    for part in sorted(files, key=lambda each: find_text(each, "id") or ""):
        turn = messages.get(find_text(part, "messageID") or "")
        if turn is not None:
            turn.parts.append(part)
    return [turn for _, turn in sorted(messages.items())]


def _list_asked(turns: Sequence[_Turn], model: str) -> Iterator[_StepRequest]:
    history: list[bytes] = []
    for turn in turns:
        if find_text(turn.info, "role") != _ASSISTANT:
            history.append(_encode_user(_join_texts(turn)))
            continue
        named = find_text(turn.info, "modelID") or model
        for step in _list_steps(turn):
            if history:
                yield _StepRequest(tuple(history), step, named, find_text(turn.info, "sessionID") or "")
            history += [msgspec.json.encode(message) for message in step.messages]
        if find_value(turn.info, "summary") is True:
            # What the client goes on with.
            history = [_encode_user(""), *history[-1:]]


def _encode_user(text: str) -> bytes:
    return msgspec.json.encode({"role": "user", "content": text or _NO_TEXT})


def _join_texts(turn: _Turn) -> str:
    texts = [find_text(part, "text") for part in turn.parts if find_text(part, "type") == "text"]
    return "\n\n".join(text for text in texts if text)


def _list_steps(turn: _Turn) -> list[_Step]:
    """Those that came to an end or said something."""
    steps = [_Step()]
    for part in turn.parts:
        if find_text(part, "type") == "step-start" and steps[-1] != _Step():
            steps.append(_Step())
        _add_part(steps[-1], part)
    if len(steps) == 1 and steps[0].usage is None:
        steps[0].usage = _read_tokens(find_object(turn.info, "tokens"))
    return [step for step in steps if step.text or step.calls]


def _add_part(step: _Step, part: RecordedFields) -> None:
    match find_text(part, "type"):
        case "text":
            step.text += find_text(part, "text") or ""
        case "tool":
            _add_call(step, part)
        case "step-finish":
            step.usage = _read_tokens(find_object(part, "tokens"))


def _add_call(step: _Step, part: RecordedFields) -> None:
    """A call that failed has an error in the place of its output."""
    state, name = find_object(part, "state") or {}, find_text(part, "callID") or f"call_{len(step.calls)}"
    arguments = bytes(state.get("input", b"{}")).decode("utf-8", "replace")
    function = {"name": find_text(part, "tool") or "tool", "arguments": arguments}
    step.calls.append({"id": name, "type": "function", "function": function})
    output = find_text(state, "output") or find_text(state, "error") or ""
    step.results.append({"role": "tool", "tool_call_id": name, "content": output})


def _read_tokens(tokens: RecordedFields | None) -> RecordedUsage | None:
    """The parts of a prompt are counted apart from each other."""
    cache = find_object(tokens or {}, "cache") or {}
    prompt = _count(tokens, "input") + _count(cache, "read") + _count(cache, "write")
    return RecordedUsage(prompt, _count(tokens, "output") + _count(tokens, "reasoning")) if prompt else None


def _count(fields: RecordedFields | None, name: str) -> int:
    value = find_value(fields or {}, name)
    return value if is_count(value) else 0


def _render(asked: _StepRequest) -> RecordedRequest:
    body = GrowingBody([("model", msgspec.json.encode(asked.model))], "messages")
    body.add(asked.history)
    session, step = asked.session, asked.step
    return RecordedRequest(
        path=CHAT_PATH,
        body=body.render(),
        headers=((_SESSION_HEADER, session),) if session else (),
        usage=step.usage,
        reply=(msgspec.json.encode(step.messages[0]),),
    )
