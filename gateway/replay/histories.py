"""Files that hold a whole history at once: transcripts, and what `refold export` writes.

A transcript is `{"messages": […], "tools": […]}`: one conversation in the form of chat messages. Optional:
`model`; `usage_by_assistant` with `{i, prompt_tokens, cached_tokens, completion_tokens}` for the reply that
is `messages[i]`; and `response`, the provider's answer to the last message.

An export has lines about one conversation: the version, the newest body, the numbers of its requests, and its
summaries. Where a cut has as many messages as one of the recorded requests, that one's usage is used.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec
from pydantic import ValidationError

from gateway.core.counts import is_count
from gateway.replay.recordings import (
    CHAT_PATH,
    RESPONSES_PATH,
    History,
    NotARecording,
    RecordedFields,
    RecordedFile,
    RecordedUsage,
    Recording,
    find_fields,
    find_list,
    find_object,
    find_text,
    find_value,
    read_usage,
)
from gateway.replay.request_log import guess_path
from gateway.settings import ModelPrice, ModelRule

_ASSISTANT: Final = "assistant"
_EMPTY: Final = (b"null", b"[]")
_EXPORT: Final = "gateway.export"
_VERSION: Final = 1
# What a pattern for names of models understands in another way.
_SPECIAL: Final = re.compile(r"([*?\[])")
_OF_THE_MODEL: Final = frozenset({"reasoning", "function_call", "custom_tool_call", "local_shell_call"})


def is_transcript(document: RecordedFile) -> bool:
    """A body of a request has a model and no usage; as a transcript it would be cut anew."""
    fields = document.only
    if fields is None or find_list(fields.get("messages")) is None:
        return False
    return "model" not in fields or "usage_by_assistant" in fields or "response" in fields


def read_transcript(document: RecordedFile, model: str) -> Recording:
    """Messages without a role are skipped."""
    fields = document.objects[0]
    response = find_object(fields, "response") or {}
    named = find_text(fields, "model") or find_text(response, "model") or model
    tools = bytes(fields.get("tools", b"null"))
    before = [("model", msgspec.json.encode(named)), *([("tools", tools)] if tools not in _EMPTY else [])]
    history = History(CHAT_PATH, before)
    skipped = 0
    for raw in find_list(fields.get("messages")) or ():
        role = find_text(find_fields(raw) or {}, "role")
        if role is None:
            skipped += 1
        else:
            history.add(bytes(raw), is_reply=role == _ASSISTANT)
    history.finish()
    usages = _read_usages(fields)
    for cut in history.cuts:
        places = range(cut.end, cut.end + len(cut.reply))
        found = next((usages[at] for at in places if at in usages), None)
        cut.usage = found if cut.reply else read_usage(response)
    return history.make_recording("transcript", skipped)


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


# What the gateway exports


def is_export(document: RecordedFile) -> bool:
    return find_text(document.objects[0], "type") == _EXPORT


def read_export(document: RecordedFile, model: str) -> Recording:
    """Raises NotARecording for a version that came later."""
    version = find_value(document.objects[0], "version")
    if version != _VERSION:
        raise NotARecording(f"it is an export of version {version!r}; this gateway reads version {_VERSION}")
    body = next((found for line in document.objects if (found := find_object(line, "body"))), {})
    path = guess_path(body)
    name = "input" if path == RESPONSES_PATH else "messages"
    history = History(path, [(key, bytes(raw)) for key, raw in body.items() if key != name])
    # Messages before those that a history counts.
    leading: int | None = None
    for place, raw in enumerate(find_list(body.get(name)) or ()):
        item = find_fields(raw) or {}
        role = find_text(item, "role")
        if leading is None and role not in ("system", "developer"):
            leading = place
        is_item = path == RESPONSES_PATH and find_text(item, "type") in _OF_THE_MODEL
        history.add(bytes(raw), is_reply=is_item or role == _ASSISTANT)
    history.finish()
    usages = _read_counted(document.objects)
    for cut in history.cuts:
        cut.usage = usages.get(cut.end - (leading if leading is not None else len(history.items)))
    return history.make_recording("gateway export", document.skipped)


def _read_counted(lines: Sequence[RecordedFields]) -> dict[int, RecordedUsage]:
    """By the number of messages of a request."""
    found = {}
    for line in lines:
        if find_text(line, "type") != "request":
            continue
        messages, prompt = find_value(line, "messages"), find_value(line, "prompt_tokens")
        if find_text(line, "plan") != "passthrough":
            # The upstream has counted what was sent; what came is the gateway's own estimate.
            prompt = find_value(line, "received")
        if is_count(messages) and is_count(prompt) and prompt > 0:
            output = find_value(line, "output_tokens")
            found[messages] = RecordedUsage(prompt, output if is_count(output) else None)
    return found


def read_rule(first_line: bytes) -> ModelRule | None:
    """The window and the price that the model had where the exported conversation took place."""
    fields = find_fields(first_line)
    if fields is None or find_text(fields, "type") != _EXPORT:
        return None
    limits, model = find_value(fields, "limits"), find_text(fields, "model")
    price = find_value(fields, "price")
    try:
        return ModelRule(
            match=_SPECIAL.sub(r"[\1]", model or ""),
            price=ModelPrice(**price) if price is not None else None,
            **(limits or {}),
        )
    except (TypeError, ValidationError):
        # From an earlier version, or of a model whose name no pattern can have.
        return None
