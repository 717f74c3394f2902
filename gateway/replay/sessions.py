"""Session files of coding agents. What each holds follows its program, as far as we could read it.

- Claude Code (`~/.claude/projects/**/*.jsonl`), as requests of the Messages API. A line is an event. Those of
  types `user` and `assistant` hold a message; a reply takes one line for each of its blocks, all with the
  message's id. Sub-agents are sidechains, in the same file or in one of their own. At a `compact_boundary`
  the history begins anew with the client's summary. A prompt whose parent is an earlier line rewinds the
  history to it. System prompt and tools are not in the file, but the usage counts them.
- Codex (`~/.codex/sessions/**/rollout-*.jsonl`), as requests of the Responses API. A line has a type and a
  payload; in older files it is the item itself. Usage comes in an event behind the reply. At `compacted` the
  history begins anew: with the one that the line gives, or with the person's messages and the summary.
- opencode, as chat requests: what `opencode export` writes, and the files under its `storage`, where each
  message and each part is a file of its own, and names its session. A message has parts: texts, reasoning,
  and calls of tools with their results. A step of the model begins at each `step-start`. A reply that is a
  summary takes the place of everything before it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from gateway.core.counts import is_count
from gateway.replay.recordings import (
    CHAT_PATH,
    MESSAGES_PATH,
    RESPONSES_PATH,
    CutRequest,
    History,
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

    def __init__(self, agent: str, cuts: list[CutRequest]) -> None:
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
        self.history.fields = [("model", msgspec.json.encode(named or model))]
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
        if message is not None and role == _USER:
            strand.add_user(message, find_text(line, "parentUuid"))
        elif message is not None and role == _ASSISTANT:
            strand.add_reply(line, message, model)
        name = find_text(line, "uuid")
        if name is not None:
            strand.ends[name] = len(strand.history.items)
    return main.history.make_recording("Claude Code session", document.skipped)


def _read_blocks(message: RecordedFields) -> list[bytes]:
    """A text is one block."""
    items = find_list(message.get("content"))
    if items is not None:
        return [bytes(item) for item in items if find_fields(item) is not None]
    text = find_text(message, "content")
    return [msgspec.json.encode({"type": "text", "text": text})] if text else []


# Codex

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


def is_codex(document: RecordedFile) -> bool:
    if not document.is_lines:
        return False
    if any(find_text(line, "type") in _LINE_TYPES and "payload" in line for line in document.sample):
        return True
    # Before lines had payloads: what a session is, then its items.
    first = document.objects[0]
    is_old = "id" in first and "timestamp" in first and "instructions" in first
    return is_old and any(_is_item(line) for line in document.sample[1:])


def read_codex(document: RecordedFile, model: str) -> Recording:
    rollout = _Rollout(model)
    for line in document.objects:
        payload = find_object(line, "payload")
        if payload is not None:
            rollout.read_line(find_text(line, "type") or "", payload, bytes(line["payload"]))
        elif _is_item(line):
            fields = (msgspec.json.encode(name) + b":" + bytes(raw) for name, raw in line.items())
            rollout.add(line, b"{%b}" % b",".join(fields))
        else:
            rollout.note(instructions=find_text(line, "instructions"))
    return rollout.history.make_recording("Codex rollout", document.skipped)


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
        self.history.fields = fields

    def read_line(self, kind: str, payload: RecordedFields, raw: bytes) -> None:
        match kind:
            case "session_meta":
                base = find_object(payload, "base_instructions") or {}
                self._instructions = None
                self.note(instructions=find_text(payload, "instructions") or find_text(base, "text"))
            case "turn_context":
                self.note(model=find_text(payload, "model"))
            case "response_item" if _is_item(payload):
                self.add(payload, raw)
            case "event_msg" if find_text(payload, "type") == "token_count":
                usage = read_usage(find_object(payload, "info") or {}, "last_token_usage")
                if usage is not None and self.history.cuts:
                    self.history.cuts[-1].usage = usage
            case "compacted":
                self._compact(payload)

    def add(self, item: RecordedFields, raw: bytes) -> None:
        is_message = find_text(item, "type") == "message"
        is_reply = find_text(item, "role") == _ASSISTANT if is_message else _is_of_model(item)
        self.history.add(raw, is_reply=is_reply)

    def _compact(self, payload: RecordedFields) -> None:
        given = find_list(payload.get("replacement_history"))
        if given is not None:
            self.history.restart([bytes(raw) for raw in given])
            return
        summary = {"type": "input_text", "text": find_text(payload, "message") or ""}
        message = {"type": "message", "role": _USER, "content": [summary]}
        kept = [raw for raw in self.history.items if _is_of_person(bytes(raw))]
        self.history.restart([*kept, msgspec.json.encode(message)])


def _is_item(fields: RecordedFields) -> bool:
    return find_text(fields, "type") in ("message", *_OF_THE_CLIENT) or _is_of_model(fields)


def _is_of_model(item: RecordedFields) -> bool:
    return find_text(item, "type") in _OF_THE_MODEL


def _is_of_person(raw: bytes) -> bool:
    item = find_fields(raw) or {}
    return find_text(item, "type") == "message" and find_text(item, "role") != _ASSISTANT


# opencode

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

    def render(self) -> bytes:
        calls = {"tool_calls": self.calls} if self.calls else {}
        return msgspec.json.encode({"role": _ASSISTANT, "content": self.text or None, **calls})


def is_opencode(document: RecordedFile) -> bool:
    only = document.only
    if only is not None and find_list(only.get("messages")) is not None:
        return "info" in only
    return any(find_opencode_session(fields) is not None for fields in document.sample)


def find_opencode_session(fields: RecordedFields) -> str | None:
    """The session that a file of the storage belongs to."""
    name = find_text(fields, "sessionID")
    if name is not None and ("role" in fields or "messageID" in fields):
        return name
    own = find_text(fields, "id")
    return own if own is not None and own.startswith(_SESSION_PREFIX) and "projectID" in fields else None


def read_opencode(document: RecordedFile, model: str) -> Recording:
    is_export = document.only is not None and "messages" in document.only
    turns = _read_export(document.objects[0]) if is_export else _read_storage(document.objects)
    history = History(CHAT_PATH)
    for turn in turns:
        if find_text(turn.info, "role") != _ASSISTANT:
            history.add(_encode_user(_join_texts(turn)))
            continue
        session = find_text(turn.info, "sessionID")
        history.headers = ((_SESSION_HEADER, session),) if session else ()
        history.fields = [("model", msgspec.json.encode(find_text(turn.info, "modelID") or model))]
        for step in _list_steps(turn):
            _add_step(history, step)
        if find_value(turn.info, "summary") is True:
            # What the client goes on with.
            history.restart([_encode_user(""), *history.items[-1:]])
    return history.make_recording("opencode session", document.skipped)


def _add_step(history: History, step: _Step) -> None:
    """Each step is a request of its own, also without results of calls between them."""
    history.is_replying = False
    is_asked = bool(history.items)
    history.add(step.render(), is_reply=True)
    if is_asked:
        history.cuts[-1].usage = step.usage
    for result in step.results:
        history.add(msgspec.json.encode(result))


def _read_export(fields: RecordedFields) -> list[_Turn]:
    turns = []
    for raw in find_list(fields.get("messages")) or ():
        message = find_fields(raw) or {}
        parts = [find_fields(part) or {} for part in find_list(message.get("parts")) or ()]
        turns.append(_Turn(find_object(message, "info") or {}, parts))
    return turns


def _read_storage(files: Sequence[RecordedFields]) -> Iterator[_Turn]:
    """Ids ascend with the time."""
    messages = {find_text(each, "id") or "": _Turn(each) for each in files if "role" in each}
    for part in sorted(files, key=lambda each: find_text(each, "id") or ""):
        turn = messages.get(find_text(part, "messageID") or "")
        if turn is not None:
            turn.parts.append(part)
    return (turn for _, turn in sorted(messages.items()))


def _encode_user(text: str) -> bytes:
    return msgspec.json.encode({"role": _USER, "content": text or _NO_TEXT})


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
