"""What `refold export` writes: lines about one conversation.

The first line has the version. Then come the newest body, the numbers of its requests, and its summaries.
The requests are cut from the body as from a transcript; where a cut has as many messages as one of the
recorded requests, that one's usage is used.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from pydantic import ValidationError

from gateway.core.counts import is_count
from gateway.replay.bodies import GrowingBody
from gateway.replay.errors import NotARecording
from gateway.replay.readers.document import (
    RecordedFields,
    RecordedFile,
    find_fields,
    find_list,
    find_object,
    find_text,
    find_value,
)
from gateway.replay.readers.request_log import guess_path
from gateway.replay.recording import RESPONSES_PATH, RecordedRequest, RecordedUsage, Recording
from gateway.settings import ModelPrice, ModelRule

KIND: Final = "gateway export"
TYPE: Final = "gateway.export"
VERSION: Final = 1
# What a pattern for names of models understands in another way.
_SPECIAL: Final = re.compile(r"([*?\[])")
_OF_THE_MODEL: Final = frozenset({"reasoning", "function_call", "custom_tool_call", "local_shell_call"})


def claims(document: RecordedFile) -> bool:
    return find_text(document.objects[0], "type") == TYPE


def read(document: RecordedFile, model: str) -> Recording:
    """Raises NotARecording for a version that came later."""
    version = find_value(document.objects[0], "version")
    if version != VERSION:
        raise NotARecording(f"it is an export of version {version!r}; this gateway reads version {VERSION}")
    body = next((found for line in document.objects if (found := find_object(line, "body"))), {})
    usages = _read_usages(document.objects)
    reading = _ExportedBody(body)
    return Recording(
        kind=KIND,
        # One at a time: all bodies together are many times the file.
        list_requests=lambda: _list_requests(reading, usages),
        count=len(reading.cuts),
        skipped=document.skipped,
    )


def read_rule(first_line: bytes) -> ModelRule | None:
    """The window and the price that the model had where the conversation took place."""
    fields = find_fields(first_line)
    if fields is None or find_text(fields, "type") != TYPE:
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


def _read_usages(lines: Sequence[RecordedFields]) -> dict[int, RecordedUsage]:
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


class _ExportedBody:
    """The newest body, and where the requests before it ended."""

    def __init__(self, body: RecordedFields) -> None:
        self.path = guess_path(body)
        self.list_name = "input" if self.path == RESPONSES_PATH else "messages"
        is_reply = _is_reply_item if self.path == RESPONSES_PATH else _is_reply_message
        self.items = [bytes(raw) for raw in find_list(body.get(self.list_name)) or ()]
        self.fields = [(key, bytes(raw)) for key, raw in body.items() if key != self.list_name]
        self.cuts = [*_find_cuts(self.items, is_reply)]


def _list_requests(reading: _ExportedBody, usages: dict[int, RecordedUsage]) -> Iterator[RecordedRequest]:
    items = reading.items
    growing = GrowingBody(reading.fields, reading.list_name)
    leading = _count_leading(items)
    done = 0
    for cut, end in reading.cuts:
        growing.add(items[done:cut])
        done = cut
        usage = usages.get(cut - leading)
        yield RecordedRequest(
            path=reading.path, body=growing.render(), usage=usage, reply=tuple(items[cut:end])
        )


def _find_cuts(items: Sequence[bytes], is_reply: Callable[[bytes], bool]) -> Iterator[tuple[int, int]]:
    """Where each reply begins and ends; the last request may have none."""
    replies = [is_reply(item) for item in items]
    at = 0
    while at < len(items):
        if not replies[at] or at == 0:
            at += 1
            continue
        end = at
        while end < len(items) and replies[end]:
            end += 1
        yield at, end
        at = end
    if items and not replies[-1]:
        yield len(items), len(items)


def _count_leading(items: Sequence[bytes]) -> int:
    """Messages before those that a history counts."""
    for place, item in enumerate(items):
        if find_text(find_fields(item) or {}, "role") not in ("system", "developer"):
            return place
    return len(items)


def _is_reply_message(raw: bytes) -> bool:
    return find_text(find_fields(raw) or {}, "role") == "assistant"


def _is_reply_item(raw: bytes) -> bool:
    item = find_fields(raw) or {}
    return find_text(item, "type") in _OF_THE_MODEL or find_text(item, "role") == "assistant"
