"""Session files of coding agents. What each holds follows its program, as far as we could read it.

- Claude Code (`~/.claude/projects/**/*.jsonl`), as requests of the Messages API. A line is an event. Those of
  types `user` and `assistant` hold a message; a reply takes one line for each of its blocks, all with the
  message's id. Sub-agents are sidechains, in the same file or in one of their own. At a `compact_boundary`
  the history begins anew with the client's summary. A prompt whose parent is an earlier line rewinds the
  history to it. System prompt and tools are not in the file, but the usage counts them.
- Codex (`~/.codex/sessions/**/rollout-*.jsonl`), as requests of the Responses API. A line has a type and a
  payload; in older files it is the item itself. Usage comes in an event behind the reply. At `compacted` the
  history begins anew: with the one that the line gives, or with the person's messages and the summary.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.replay.recordings import (
    MESSAGES_PATH,
    RESPONSES_PATH,
    History,
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

_USER, _ASSISTANT = "user", "assistant"

# Claude Code

# Replies that the client has made itself, such as for an error of the API.
_SYNTHETIC: Final = "<synthetic>"
_AGENT_HEADER: Final = "x-claude-code-agent-id"
_CLAUDE_SESSION_HEADER: Final = "x-claude-code-session-id"


@dataclass(slots=True)
class _Said:
    """One message, put together from its lines. name: of a reply."""

    role: str
    blocks: list[bytes]
    name: str = ""

    def __bytes__(self) -> bytes:
        return b'{"role":"%b","content":[%b]}' % (self.role.encode(), b",".join(self.blocks))


class _Strand:
    """The main conversation, or that of a sub-agent."""

    def __init__(self, agent: str, cuts: list[RecordedRequest]) -> None:
        self.history = History(MESSAGES_PATH, cuts=cuts)
        # How many messages there were at each line.
        self.ends: dict[str, int] = {}
        self._agent = agent

    def add_user(self, message: RecordedFields, parent: str | None) -> None:
        blocks = _read_blocks(message)
        if not any(b'"tool_result"' in block for block in blocks):
            self._rewind(parent)
        newest = self._newest
        if newest is not None and newest.role == _USER:
            newest.blocks += blocks
        else:
            self.history.add(_Said(_USER, blocks))

    def _rewind(self, parent: str | None) -> None:
        """Drops what the person has gone back behind. Results of parallel calls follow in any order, so a
        rewind is one only if a reply is dropped.
        """
        items = self.history.items
        end = self.ends.get(parent or "", len(items))
        if any(isinstance(said, _Said) and said.role == _ASSISTANT for said in items[end:]):
            self.history.restart(items[:end])

    def add_reply(self, line: RecordedFields, message: RecordedFields, model: str) -> None:
        named, name = find_text(message, "model"), find_text(message, "id") or ""
        newest, blocks = self._newest, _read_blocks(message)
        if named == _SYNTHETIC or newest is None:
            return
        if newest.role == _ASSISTANT:
            # Another reply, without a message between them, answers no request of its own.
            if newest.name == name:
                newest.blocks += blocks
            else:
                self.history.add(_Said(_ASSISTANT, blocks, name))
            return
        session = find_text(line, "sessionId") or ""
        pairs = ((_CLAUDE_SESSION_HEADER, session), (_AGENT_HEADER, self._agent))
        self.history.headers = tuple((key, value) for key, value in pairs if value)
        self.history.set_fields([("model", msgspec.json.encode(named or model))])
        self.history.add(_Said(_ASSISTANT, blocks, name), is_reply=True)
        usage = read_usage(message)
        # The output is often that of the beginning of the stream, so it is counted.
        self.history.cuts[-1].usage = RecordedUsage(usage.prompt_tokens) if usage is not None else None

    @property
    def _newest(self) -> _Said | None:
        newest = self.history.items[-1] if self.history.items else None
        return newest if isinstance(newest, _Said) else None


def is_claude_code(document: RecordedFile) -> bool:
    return document.is_lines and any(
        find_text(fields, "type") in (_USER, _ASSISTANT) and "uuid" in fields and "message" in fields
        for fields in document.sample
    )


def read_claude_code(document: RecordedFile, model: str) -> Recording:
    main = _Strand("", [])
    strands = {"": main}
    for line in document.objects:
        agent = find_text(line, "agentId") or ("sidechain" if find_value(line, "isSidechain") else "")
        if agent not in strands:
            strands[agent] = _Strand(agent, main.history.cuts)
        strand = strands[agent]
        if find_text(line, "subtype") == "compact_boundary":
            strand.history.restart()
        role, message = find_text(line, "type"), find_object(line, "message")
        if message and role == _USER:
            strand.add_user(message, find_text(line, "parentUuid"))
        elif message and role == _ASSISTANT:
            strand.add_reply(line, message, model)
        name = find_text(line, "uuid")
        if name is not None:
            strand.ends[name] = len(strand.history.items)
    return Recording("Claude Code session", main.history.cuts, document.skipped)


def _read_blocks(message: RecordedFields) -> list[bytes]:
    """A text is one block."""
    items = find_list(message.get("content"))
    if items is not None:
        return [bytes(item) for item in items if find_fields(item) is not None]
    text = find_text(message, "content")
    return [msgspec.json.encode({"type": "text", "text": text})] if text else []


# Codex

_LINE_TYPES: Final = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})


def is_codex(document: RecordedFile) -> bool:
    if not document.is_lines:
        return False
    if any(find_text(line, "type") in _LINE_TYPES and "payload" in line for line in document.sample):
        return True
    # Before lines had payloads: what a session is, then its items.
    first = document.objects[0]
    is_old = "id" in first and "timestamp" in first and "instructions" in first
    return is_old and any(find_role(line) != "other" for line in document.sample[1:])


def read_codex(document: RecordedFile, model: str) -> Recording:
    rollout = _Rollout(model)
    for line in document.objects:
        payload = find_object(line, "payload")
        if payload:
            rollout.read_line(find_text(line, "type") or "", payload, bytes(line["payload"]))
        elif find_role(line) != "other":
            fields = (msgspec.json.encode(name) + b":" + bytes(raw) for name, raw in line.items())
            rollout.history.add(b"{%b}" % b",".join(fields), is_reply=find_role(line) == _ASSISTANT)
        else:
            rollout.note(instructions=find_text(line, "instructions"))
    return Recording("Codex rollout", rollout.history.cuts, document.skipped)


class _Rollout:
    def __init__(self, model: str) -> None:
        self.history = History(RESPONSES_PATH)
        self._model = model
        self._instructions: str | None = None
        self.note()

    def note(self, model: str | None = None, instructions: str | None = None) -> None:
        """What the requests from here on say before their history."""
        self._model, self._instructions = model or self._model, instructions or self._instructions
        # The upstream stores nothing of it, so every request brings the whole history.
        fields = [("model", msgspec.json.encode(self._model)), ("store", b"false")]
        if self._instructions:
            fields.append(("instructions", msgspec.json.encode(self._instructions)))
        self.history.set_fields(fields)

    def read_line(self, kind: str, payload: RecordedFields, raw: bytes) -> None:
        match kind:
            case "session_meta":
                base = find_object(payload, "base_instructions")
                self._instructions = None
                self.note(instructions=find_text(payload, "instructions") or find_text(base, "text"))
            case "turn_context":
                self.note(model=find_text(payload, "model"))
            case "response_item" if (role := find_role(payload)) != "other":
                self.history.add(raw, is_reply=role == _ASSISTANT)
            case "event_msg" if find_text(payload, "type") == "token_count":
                usage = read_usage(find_object(payload, "info"), "last_token_usage")
                if usage is not None and self.history.cuts:
                    self.history.cuts[-1].usage = usage
            case "compacted":
                self._compact(payload)

    def _compact(self, payload: RecordedFields) -> None:
        given = find_list(payload.get("replacement_history"))
        if given is not None:
            self.history.restart([bytes(raw) for raw in given])
            return
        summary = {"type": "input_text", "text": find_text(payload, "message") or ""}
        message = {"type": "message", "role": _USER, "content": [summary]}
        roles = ((raw, find_role(find_fields(bytes(raw)) or {})) for raw in self.history.items)
        kept = [raw for raw, role in roles if role in (_USER, "system")]
        self.history.restart([*kept, msgspec.json.encode(message)])
