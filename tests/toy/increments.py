"""The error of estimates of what a step adds, against the upstream's count. Runs the gateway's own code.

A recording is a conversation with the prompt sizes that its responses reported. Calibration uses the earlier
responses of the same recording only.
"""

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gateway.conversations.reading import Received
from gateway.core.history.conversation import Conversation, find_spans
from gateway.core.history.head import Head
from gateway.core.history.view import View, measure
from gateway.core.policy import Estimator
from gateway.core.sizing.calibrated_sizes import calibrate_sizes, estimate_view
from gateway.core.sizing.estimate import Calibration, Known, Sizes
from gateway.planning.message_sizes import Sizer
from gateway.wire.registry import CHAT
from tests.builders.bodies import read_alone
from tests.shared_data import SHARED
from tests.toy.agent import Message
from tests.toy.counting import TokenCounter
from tests.toy.material import KINDS, make_prose, make_tool_text

MIN_ADDED_TOKENS = 2_000
_PLAIN = View(None, {})
_TRANSCRIPTS = SHARED / "data" / "transcripts"
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
# Lines as a file viewer numbers them, or ending as code does.
_CODE_LINE = re.compile(r"^ *\d+\u2192|[{}();,:]$", re.MULTILINE)
_BIASES = (0.9, 1.0, 1.2)
_SESSIONS, _TURNS = 12, 16
_SYSTEM_TOKENS = 3_000


@dataclass(frozen=True)
class Told:
    """A request with `length` messages got a response with this usage."""

    length: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Recording:
    """is_complete: `messages` and `tools` are the whole request."""

    source: str
    messages: Sequence[Message]
    tools: Sequence[Message]
    told: Sequence[Told]
    is_complete: bool


@dataclass(frozen=True)
class Increment:
    """One step, in tokens. plain, calibrated: estimates of what was added, without and with calibration;
    None before the first response, or if only a whole prompt with missing parts is known.
    """

    source: str
    kind: str
    is_complete: bool
    added: int
    plain: float
    calibrated: float | None


def plain_errors(steps: Sequence[Increment]) -> list[float]:
    """Errors as fractions of what was added."""
    return [abs(step.plain - step.added) / step.added for step in steps]


def calibrated_errors(steps: Sequence[Increment]) -> list[float]:
    told = [(step.calibrated, step.added) for step in steps]
    return [abs(estimate - added) / added for estimate, added in told if estimate is not None]


def load_recordings() -> Iterator[Recording]:
    """The recorded sessions with usage, if present. If the client restarted its history, so does the
    recording.
    """
    if not _TRANSCRIPTS.is_dir():
        return
    manifest = json.loads((_TRANSCRIPTS / "MANIFEST.json").read_text("utf-8"))
    for entry in manifest["entries"]:
        source = entry["file"].split("/")[0]
        recorded = json.loads((_TRANSCRIPTS / entry["file"]).read_text("utf-8"))
        messages, tools = recorded["messages"], recorded.get("tools") or ()
        if "response" in recorded:
            usage = recorded["response"]["usage"]
            told = Told(len(messages), usage["prompt_tokens"], usage["completion_tokens"])
            yield Recording(source, messages, tools, [told], is_complete=True)
            continue
        usages = recorded.get("usage_by_assistant") or ()
        all_told = [Told(u["i"], u["prompt_tokens"], u["completion_tokens"]) for u in usages]
        for start, part in _split_where_it_shrinks(all_told):
            yield Recording(source, messages[start : start + part[-1].length], (), part, is_complete=False)


def _split_where_it_shrinks(told: Sequence[Told]) -> Iterator[tuple[int, list[Told]]]:
    start, part = 0, list[Told]()
    for each in told:
        if part and each.prompt_tokens < part[-1].prompt_tokens:
            yield start, [replace(one, length=one.length - start) for one in part]
            start, part = part[-1].length, []
        part.append(each)
    if part:
        yield start, [replace(one, length=one.length - start) for one in part]


def make_recordings() -> Iterator[Recording]:
    """Complete sessions with results of all kinds, counted by the toy's tokenizer at several biases."""
    for number in range(_SESSIONS):
        yield _make_recording(_BIASES[number % len(_BIASES)], random.Random(number))


def _make_recording(bias: float, rng: random.Random) -> Recording:
    counter, told = TokenCounter(bias), list[Told]()
    function = {"name": "look", "description": make_prose(rng, 200), "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    messages: list[Message] = [
        {"role": "system", "content": make_prose(rng, _SYSTEM_TOKENS)},
        {"role": "user", "content": make_prose(rng, 150)},
    ]
    for number in range(_TURNS):
        prompt = counter.prompt({"messages": messages, "tools": tools})
        reply = _make_reply(rng, number)
        told.append(Told(len(messages), prompt, counter.message(reply)))
        size = rng.randrange(1_000, 8_000)
        kind = rng.choice((*KINDS, "prose"))
        text = make_prose(rng, size) if kind == "prose" else make_tool_text(rng, kind, size)
        messages += [reply, {"role": "tool", "tool_call_id": f"call_{number}", "content": text}]
    return Recording("generated", messages, tools, told, is_complete=True)


def _make_reply(rng: random.Random, number: int) -> Message:
    arguments = json.dumps({"path": f"src/{rng.randrange(999)}.py", "why": make_prose(rng, 20)})
    call = {"id": f"call_{number}", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return {"role": "assistant", "content": make_prose(rng, rng.randrange(30, 300)), "tool_calls": [call]}


async def find_increments(
    recordings: Iterator[Recording], sizer: Sizer, estimator: Estimator
) -> list[Increment]:
    """Every step of at least MIN_ADDED_TOKENS, once: recordings may begin with the same messages."""
    found: dict[tuple[bytes, int], Increment] = {}
    for recording in recordings:
        body = {"model": "m", "tools": list(recording.tools), "messages": list(recording.messages)}
        data = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
        received = read_alone("t", CHAT, data)
        sizes = await sizer.measure(received, estimator)
        for told, increment in _replay(recording, received, sizes):
            key = received.conversation.chain[told.length]
            found.setdefault((key, told.prompt_tokens), increment)
    return list(found.values())


def _replay(recording: Recording, received: Received, sizes: Sizes) -> Iterator[tuple[Told, Increment]]:
    past: list[Head] = []
    calibration = Calibration()
    leading = len(received.conversation.leading)
    for told in recording.told:
        if past and told.length - leading <= past[-1].length:
            continue
        told = replace(told, length=told.length - leading)
        conversation, shown = _cut(received.conversation, sizes, told.length)
        start = past[-1].length if past else 0
        before = past[-1].prompt_tokens if past else 0
        added = told.prompt_tokens - before
        if added >= MIN_ADDED_TOKENS and (past or recording.is_complete):
            nothing = calibrate_sizes(
                conversation, shown, Known(head=None, head_view=_PLAIN, calibration=Calibration())
            )
            plain = nothing.shown(_PLAIN, start, told.length) + (0 if past else nothing.environment)
            is_taught = len(past) > (0 if recording.is_complete else 1)
            yield (
                told,
                Increment(
                    source=recording.source,
                    kind=_choose_kind(recording.messages[leading + start : leading + told.length]),
                    is_complete=recording.is_complete,
                    added=added,
                    plain=plain,
                    calibrated=_estimate(conversation, shown, past, calibration) - before
                    if is_taught
                    else None,
                ),
            )
        raw = measure(_PLAIN, shown.messages, shown.environment, told.length)
        calibration = calibration.with_sample(told.prompt_tokens, raw)
        past.append(_make_head(conversation, told))


def _cut(conversation: Conversation, sizes: Sizes, length: int) -> tuple[Conversation, Sizes]:
    """The request as it was when only so many messages were there."""
    messages, chain = conversation.messages[:length], conversation.chain[: length + 1]
    opening = min(conversation.opening_end, length)
    shown = replace(sizes, messages=sizes.messages[:length])
    spans = find_spans(messages, length, conversation.spans)
    return Conversation(conversation.leading, messages, chain, opening, spans), shown


def _estimate(
    conversation: Conversation, sizes: Sizes, past: Sequence[Head], calibration: Calibration
) -> int:
    known = Known(head=past[-1], head_view=_PLAIN, calibration=calibration, past=past)
    return estimate_view(conversation, calibrate_sizes(conversation, sizes, known), known, _PLAIN).tokens


def _make_head(conversation: Conversation, told: Told) -> Head:
    return Head(
        owner="t",
        key=conversation.key.hex(),
        length=told.length,
        scope="s",
        tools="",
        prompt_tokens=told.prompt_tokens,
        output_tokens=told.output_tokens,
        growth_tokens=0.0,
        pivot=None,
        batches=(),
        conversation="c",
        parent=None,
    )


def _choose_kind(messages: Sequence[Message]) -> str:
    """The kind of content that most of the added characters have."""
    sizes: dict[str, int] = {}
    for message in messages:
        text = _read_text(message.get("content"))
        kind = _choose_text_kind(text) if message["role"] == "tool" else "prose"
        sizes[kind] = sizes.get(kind, 0) + len(text)
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            sizes["call"] = sizes.get("call", 0) + len(call["function"]["arguments"])
    return max(sizes, key=lambda kind: sizes[kind])


def _read_text(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content)
    return content if isinstance(content, str) else ""


def _choose_text_kind(text: str) -> str:
    if len(_CJK.findall(text)) > len(text) / 5:
        return "cjk"
    if text[:1] in ("{", "["):
        return "json"
    lines = text.count("\n") + 1
    return "code" if len(_CODE_LINE.findall(text)) > lines / 2 else "output"
