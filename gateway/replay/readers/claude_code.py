"""Session files of Claude Code (`~/.claude/projects/**/*.jsonl`), as requests of the Messages API.

Each line is an event. Those of types `user` and `assistant` hold a message; a reply takes one line for each
of its blocks, all with the message's id. Sub-agents are sidechains, in the same file or in one of their own.
At a `compact_boundary` the history begins anew with the client's summary. A prompt whose parent is an earlier
line rewinds the history to it. System prompt and tools are not in the file, but the usage counts them.
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
from gateway.replay.recording import MESSAGES_PATH, RecordedRequest, RecordedUsage, Recording
from gateway.wire.usage import find_usage

KIND: Final = "Claude Code session"
_USER, _ASSISTANT = "user", "assistant"
# Replies that the client has made itself, such as for an error of the API.
_SYNTHETIC: Final = "<synthetic>"
_AGENT_HEADER: Final = "x-claude-code-agent-id"
_SESSION_HEADER: Final = "x-claude-code-session-id"


@dataclass(slots=True)
class _Said:
    """One message, put together from its lines. name: of a reply."""

    role: str
    blocks: list[bytes] = field(default_factory=list)
    name: str = ""

    def render(self) -> bytes:
        return b'{"role":"%b","content":[%b]}' % (self.role.encode(), b",".join(self.blocks))


@dataclass(slots=True)
class _Strand:
    """The main conversation, or that of a sub-agent. ends: how many messages there were at each line."""

    messages: list[_Said] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)

    def add_user(self, blocks: Sequence[bytes]) -> None:
        if not self.messages or self.messages[-1].role != _USER:
            self.messages.append(_Said(_USER))
        self.messages[-1].blocks += blocks

    def rewind(self, parent: str | None) -> None:
        """Drops what the person has gone back behind. Results of parallel calls follow in any order, so a
        rewind is one only if a reply is dropped.
        """
        end = self.ends.get(parent or "", len(self.messages))
        if any(said.role == _ASSISTANT for said in self.messages[end:]):
            del self.messages[end:]


def claims(document: RecordedFile) -> bool:
    return document.is_lines and any(
        find_text(fields, "type") in (_USER, _ASSISTANT) and "uuid" in fields and "message" in fields
        for fields in document.sample
    )


def read(document: RecordedFile, model: str) -> Recording:
    requests = [*_Reading(model).list_requests(document.objects)]
    return Recording(
        kind=KIND,
        list_requests=lambda: (_render(request) for request in requests),
        count=len(requests),
        skipped=document.skipped,
    )


@dataclass(slots=True)
class _Asked:
    """A request, and the reply to it, which may still grow."""

    history: tuple[_Said, ...]
    reply: _Said
    model: str
    headers: tuple[tuple[str, str], ...]
    usage: RecordedUsage | None = None


class _Reading:
    def __init__(self, model: str) -> None:
        self._model = model
        self._threads: dict[str, _Strand] = {}

    def list_requests(self, lines: Sequence[RecordedFields]) -> Iterator[_Asked]:
        for line in lines:
            asked = self._read_line(line)
            if asked is not None:
                yield asked

    def _read_line(self, line: RecordedFields) -> _Asked | None:
        """The request that a line's reply answers, if it begins one."""
        agent = find_text(line, "agentId") or ("sidechain" if find_value(line, "isSidechain") else "")
        thread = self._threads.setdefault(agent, _Strand())
        if find_text(line, "subtype") == "compact_boundary":
            thread.messages.clear()
        asked = self._read_message(line, thread, agent)
        name = find_text(line, "uuid")
        if name is not None:
            thread.ends[name] = len(thread.messages)
        return asked

    def _read_message(self, line: RecordedFields, thread: _Strand, agent: str) -> _Asked | None:
        role, message = find_text(line, "type"), find_object(line, "message")
        if message is None or role not in (_USER, _ASSISTANT):
            return None
        blocks = _read_blocks(message)
        if role == _USER:
            if not any(b'"tool_result"' in block for block in blocks):
                thread.rewind(find_text(line, "parentUuid"))
            thread.add_user(blocks)
            return None
        return self._read_reply(line, message, thread, agent)

    def _read_reply(
        self, line: RecordedFields, message: RecordedFields, thread: _Strand, agent: str
    ) -> _Asked | None:
        model, name = find_text(message, "model"), find_text(message, "id") or ""
        if model == _SYNTHETIC or not thread.messages:
            return None
        newest = thread.messages[-1]
        if newest.role == _ASSISTANT and newest.name == name:
            newest.blocks += _read_blocks(message)
            return None
        # A reply behind another one, without a message between them, answers no request of its own.
        history = tuple(thread.messages) if newest.role == _USER else ()
        reply = _Said(_ASSISTANT, _read_blocks(message), name)
        thread.messages.append(reply)
        headers = [(_SESSION_HEADER, find_text(line, "sessionId") or ""), (_AGENT_HEADER, agent)]
        usage = find_value(message, "usage")
        found = find_usage(usage) if isinstance(usage, dict) else None
        # The output is often that of the beginning of the stream, so it is counted.
        recorded = RecordedUsage(found.prompt_tokens) if found is not None else None
        named = tuple((key, value) for key, value in headers if value)
        return _Asked(history, reply, model or self._model, named, recorded) if history else None


def _read_blocks(message: RecordedFields) -> list[bytes]:
    """A text is one block."""
    content = message.get("content")
    items = find_list(content)
    if items is not None:
        return [bytes(item) for item in items if find_fields(item) is not None]
    text = find_text(message, "content")
    return [msgspec.json.encode({"type": "text", "text": text})] if text else []


def _render(asked: _Asked) -> RecordedRequest:
    body = GrowingBody([("model", msgspec.json.encode(asked.model))], "messages")
    body.add([said.render() for said in asked.history])
    return RecordedRequest(
        path=MESSAGES_PATH,
        body=body.render(),
        headers=asked.headers,
        usage=asked.usage,
        reply=(asked.reply.render(),),
    )
