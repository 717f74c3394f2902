"""Chat conversations, drawn and rendered, and what may apply to them: pivots, marks, heads, situations.

A conversation is a list of messages as a client would send it next: it never ends with an assistant message.
Texts are small, because the tests are about structure.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from hypothesis import strategies as st

from gateway.core.compaction.decision import decide
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.prune import PruneThresholds, choose_results
from gateway.core.compaction.situation import Situation
from gateway.core.history.conversation import (
    Conversation,
    begin_conversation,
    find_open_group,
    is_boundary,
    with_messages,
)
from gateway.core.history.ends import HistorySource, continue_history, find_end_key, make_history_end
from gateway.core.history.head import Head
from gateway.core.history.pivot import Batch, FoundExchange, Mark, Pivot, Recall
from gateway.core.history.view import FRAME_TOKENS, Size, View
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Policy, Pruning
from gateway.core.sizing.calibrated_sizes import CalibratedSizes
from gateway.core.sizing.estimate import Calibration, Known, Sizes
from gateway.wire.body import UNBOUNDED, RequestBody
from gateway.wire.registry import CHAT

JSON = dict[str, Any]
PLACEHOLDER = "[Old tool result content cleared]"
QUESTION = "What did we do so far?"
RESUME = "Continue if you have next steps"
NOTHING = View(None, {})
CALIBRATED = Known(head=None, head_view=NOTHING, calibration=Calibration(1.0, 1))
# hard 12,000, soft 11,200, target 6,000 and half of the floor; protect 3,600, minimum 1,200; tail 1,800.
WINDOW_16K = Limits(context=16_000)
_TOOLS = b'[{"type":"function","function":{"name":"look","parameters":{}}}]'
# The parts of the body before and behind the messages.
_FRAMES = (
    (b'{"model":"toy","tools":' + _TOOLS + b',"messages":[', b"]}"),
    (b'{"messages": [', b'], "model": "toy", "tools": ' + _TOOLS + b', "max_tokens": 3000}\n'),
    (
        b' { "big" : 1.10, "model" : "toy", "messages" : [ ',
        b' ] , "tools" : ' + _TOOLS + b', "stream" : true, "stream_options": {"x": 1} }',
    ),
)
_JOINERS = (b",", b", ", b"\n,\t")
_FILLER = "word " * 120
_SOURCE = HistorySource(b"scope", is_named=True)


@dataclass(frozen=True)
class ReadBody:
    body: RequestBody
    conversation: Conversation

    def raw(self, position: int) -> bytes:
        conversation = self.conversation
        return self.body.raw(len(conversation.leading) + conversation.index(position))


def texts() -> st.SearchStrategy[str]:
    """Never empty."""
    some = st.sampled_from(
        [
            "Look.",
            "é \u2028 日本語 😀",
            'say "hi" \\ \n\t</conversation>',
            "<system-reminder>todo: none</system-reminder>Go on.",
            "]}, [{",
            "word " * 80,
            "x" * 700,
        ]
    )
    return st.one_of(some, st.text(min_size=1, max_size=12))


def _contents() -> st.SearchStrategy[Any]:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    part = st.builds(lambda text: {"type": "text", "text": text}, texts())
    return st.one_of(texts(), st.lists(st.one_of(part, st.just(image)), min_size=1, max_size=3))


def _plain(role: str) -> st.SearchStrategy[list[JSON]]:
    return st.builds(lambda content: [{"role": role, "content": content}], _contents())


@st.composite
def groups(draw: st.DrawFn) -> list[JSON]:
    """An assistant message with its calls and their results, in any order of the results."""
    count = draw(st.integers(1, 3))
    function = {"name": draw(st.sampled_from(["look", "skill"])), "arguments": '{"path": "a b", "n": 1.10}'}
    calls = [{"id": f"look:{number}", "type": "function", "function": function} for number in range(count)]
    said: JSON = {"role": "assistant", "content": draw(st.sampled_from([None, "", "I look."]))}
    thoughts: JSON = draw(st.sampled_from([{}, {"reasoning_content": "hm"}, {"refusal": None}]))
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": draw(_contents())}
        for call in draw(st.permutations(calls))
    ]
    return [{**said, **thoughts, "tool_calls": calls}, *results]


@st.composite
def conversations(draw: st.DrawFn, min_turns: int = 0, max_turns: int = 6) -> list[JSON]:
    """Leading block, opening of any number of users, turns of every kind."""
    leading = draw(st.lists(st.one_of(_plain("system"), _plain("developer")), max_size=2))
    opening = draw(st.lists(_plain("user"), max_size=3))
    turn = st.one_of(groups(), groups(), _plain("assistant"), _plain("user"), _plain("system"))
    turns = draw(st.lists(turn, min_size=min_turns, max_size=max_turns))
    messages = [message for part in (*leading, *opening, *turns) for message in part]
    if not any(message["role"] == "user" for message in messages) or messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": draw(texts())})
    if draw(st.booleans()):
        messages = with_unique_ids(messages)
    return messages


def with_unique_ids(messages: Sequence[JSON]) -> list[JSON]:
    """The same conversation with ids that are unique in it: each gets its group's number."""
    numbered, group = [], 0
    for message in messages:
        if message["role"] == "assistant":
            group += 1
            calls = [{**call, "id": f"{call['id']}-{group}"} for call in message.get("tool_calls", ())]
            message = {**message, "tool_calls": calls} if calls else message
        elif message["role"] == "tool":
            message = {**message, "tool_call_id": f"{message['tool_call_id']}-{group}"}
        numbered.append(message)
    return numbered


def render_message(message: JSON, style: int = 0) -> bytes:
    """As one of the JSON encoders that clients use would write it."""
    separators = (",", ":") if style & 1 else (", ", ": ")
    return json.dumps(message, ensure_ascii=bool(style & 2), separators=separators).encode()


def render_body(raws: Sequence[bytes], frame: int = 0) -> bytes:
    before, after = _FRAMES[frame]
    return before + _JOINERS[frame].join(raws) + after


def render(messages: Sequence[JSON], frame: int = 0) -> bytes:
    return render_body([render_message(message) for message in messages], frame)


@st.composite
def bodies(draw: st.DrawFn, min_turns: int = 0, max_turns: int = 6) -> bytes:
    """A request body with a valid conversation, its messages written in several styles."""
    messages = draw(conversations(min_turns, max_turns))
    styles = draw(st.integers(0, 2**30))
    raws = [render_message(message, styles >> (2 * (at % 15))) for at, message in enumerate(messages)]
    return render_body(raws, draw(frames()))


def frames() -> st.SearchStrategy[int]:
    return st.integers(0, len(_FRAMES) - 1)


def read(data: bytes, tenant: str = "t") -> ReadBody:
    body = CHAT.parse_body(data, UNBOUNDED)
    raws = [body.raw(index) for index in range(len(body.places))]
    messages = [CHAT.parse_message(raw, sha256(raw).digest()) for raw in raws]
    return ReadBody(body, with_messages(begin_conversation(tenant, CHAT.name), 0, messages))


def converse(messages: Sequence[JSON]) -> Conversation:
    return read(render(messages)).conversation


def make_tool_talk(turns: int) -> list[JSON]:
    """A task, and turns of one call and its result."""
    messages: list[JSON] = [{"role": "user", "content": "Fix it."}]
    for at in range(turns):
        call = {"id": f"c{at}", "function": {"name": "look"}}
        messages += [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{at}", "content": "x"},
        ]
    return messages


def talk(turns: int, chars: int = 4_000) -> list[JSON]:
    """A task, then turns: a reply of a few words and a message of a user with this many characters."""
    messages: list[JSON] = [{"role": "user", "content": "Fix it."}]
    for at in range(turns):
        messages += [
            {"role": "assistant", "content": f"Step {at} is done."},
            {"role": "user", "content": (f"{at} abcdefg " * chars)[:chars]},
        ]
    return messages


def head_after(turns: int, **fields: Any) -> Head:
    """Of a conversation of so many turns, once it is answered."""
    return make_head(converse(talk(turns)), **fields)


def measure_sizes(received: ReadBody) -> Sizes:
    """A token for four bytes."""
    count = len(received.conversation.messages)
    raws = [received.raw(position) for position in range(count)]
    messages = [Size(4 + len(raw) // 4, len(CHAT.parse_entry(raw).text)) for raw in raws]
    leading = [received.raw(position) for position in range(-len(received.conversation.leading), 0)]
    return Sizes(messages=messages, environment=sum(4 + len(raw) // 4 for raw in leading))


# What is kept of a conversation.


def make_pivot(conversation: Conversation, covers: int, **fields: Any) -> Pivot:
    """A pivot as the compactor would leave it behind."""
    defaults: JSON = {
        "owner": "t",
        "key": conversation.chain[covers].hex(),
        "covers": covers,
        "opening_end": conversation.opening_end,
        "summary": "We looked; nothing was broken.",
        "question": None if fields.get("opening_end", conversation.opening_end) else QUESTION,
        "resume": RESUME,
        "tokens": 20,
        "opening_tokens": 10 * fields.get("opening_end", conversation.opening_end),
        "saved_tokens": 0,
        "created_seconds": 0.0,
    }
    return Pivot(**(defaults | fields))


def make_batch(
    conversation: Conversation, marks: Sequence[Mark], length: int | None = None, **fields: Any
) -> Batch:
    length = len(conversation.messages) if length is None else length
    defaults: JSON = {"owner": "t", "placeholder": PLACEHOLDER, "saved_tokens": 0}
    key = conversation.chain[length].hex()
    return Batch(key=key, length=length, marks=tuple(marks), **(defaults | fields))


def make_head(received: Conversation, scope: str = "s", **fields: Any) -> Head:
    """At the end of the conversation, or after the first `length` messages."""
    length = fields.get("length", len(received.messages))
    defaults: JSON = {
        "owner": "t",
        "key": received.chain[length].hex(),
        "length": length,
        "tools": "",
        "prompt_tokens": 10,
        "output_tokens": 1,
        "growth_tokens": 0.0,
        "pivot": None,
        "batches": (),
        "conversation": "c",
        "parent": None,
    }
    return Head(scope=scope, **(defaults | fields))


def make_recall(conversation: Conversation, length: int, **fields: Any) -> Recall:
    """Before the message at `length`."""
    defaults: JSON = {
        "owner": "t",
        "position": length,
        "rounds": (FoundExchange(call='{"role":"user","content":"FOUND"}'),),
        "tokens": 30,
        "created_seconds": 0.0,
    }
    return Recall(chain=conversation.chain[length].hex(), length=length, **(defaults | fields))


@st.composite
def pivots(draw: st.DrawFn, conversation: Conversation) -> Pivot | None:
    """Any pivot that is eligible for this conversation, with the opening kept or left out; or none."""
    opening_end = conversation.opening_end if draw(st.booleans()) else 0
    places = [
        position
        for position in range(opening_end + 1, find_open_group(conversation) + 1)
        if is_boundary(conversation, position)
    ]
    if not places or draw(st.integers(0, 3)) == 0:
        return None
    return make_pivot(
        conversation,
        draw(st.sampled_from(places)),
        opening_end=opening_end,
    )


@st.composite
def batches(draw: st.DrawFn, conversation: Conversation) -> tuple[Batch, ...]:
    """Any marks: results cleared or cut, user messages cut."""
    places = [
        position
        for position, message in enumerate(conversation.messages)
        if message.role in ("user", "tool") and draw(st.booleans())
    ]
    limits = st.sampled_from([None, 64, 256])
    marks = [
        Mark(position, draw(limits) if conversation.messages[position].results else 64) for position in places
    ]
    return (make_batch(conversation, marks),) if marks else ()


# Histories of which a client has dropped messages.


def say(turns: int, name: str = "t") -> list[JSON]:
    """A task, and so many turns of a call, its result and a word of the user."""
    messages: list[JSON] = [{"role": "user", "content": f"Task {name}"}]
    for number in range(turns):
        identity = f"{name}:{number}"
        call = {"id": identity, "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": identity, "content": f"{identity} {_FILLER}"},
            {"role": "assistant", "content": f"Done {identity}"},
            {"role": "user", "content": f"Next after {identity}"},
        ]
    return messages


def continue_trimmed(before: Sequence[JSON], sent: Sequence[JSON]) -> Conversation:
    """A received request as the continuation of an earlier one; it fails if it is not recognized."""
    known = converse(before)
    key = find_end_key(_SOURCE, known)
    ends = [at for at in range(len(sent)) if list(sent[:at])[-4:] == list(before)[-4:]]
    assert key is not None and ends
    found = continue_history(make_history_end("t", key, known), converse(sent), ends[-1], _SOURCE)
    assert found is not None
    return found


# What is decided about.


def situate(total: int, turns: int = 10, results: float = 0.9, **fields: Any) -> Situation:
    """A conversation of `total` tokens, most of them in tool results, evenly spread over its turns."""
    each = (total - 100) // turns
    result = int(each * results)
    pair = [Size(each - result, 4 * (each - result)), Size(result, 4 * result)]
    defaults: JSON = {
        "conversation": converse(make_tool_talk(turns)),
        "sizes": Sizes(messages=[Size(100, 400), *pair * turns], environment=0),
    }
    return make_situation(**(defaults | fields))


def make_situation(**fields: Any) -> Situation:
    defaults: JSON = {
        "owner": "t",
        "policy": Policy(),
        "limits": WINDOW_16K,
        "requested": None,
        "growth": 0.0,
        "known": CALIBRATED,
        "sticky": None,
        "pivots": [],
        "batches": [],
        "may_compact": True,
    }
    return Situation(**(defaults | fields))


def pivot_at(covers: int, turns: int = 10, **fields: Any) -> Pivot:
    return make_pivot(converse(make_tool_talk(turns)), covers, tokens=200, opening_tokens=100, **fields)


def planned(situation: Situation) -> Plan:
    plan = decide(situation)
    assert isinstance(plan, Plan)
    return plan


# What is pruned.


def make_loop(count: int) -> list[JSON]:
    """An agent at work: one user message, then calls and results. Each fifth result is a skill's."""
    messages = make_tool_talk(count)
    for at in range(4, count, 5):
        messages[1 + 2 * at]["tool_calls"][0]["function"]["name"] = "skill"
    return messages


def calibrate(tokens: Sequence[float], ratio: float = 1.0) -> CalibratedSizes:
    """Messages with these true tokens, and four characters for each raw token of their words."""
    raw = [Size(int(each / ratio), 4 * max(0, int(each / ratio) - FRAME_TOKENS)) for each in tokens]
    return CalibratedSizes(Sizes(messages=raw, environment=0), tokens, 0.0, ratio)


def prune_loop(
    tokens: int, pruning: Pruning, thresholds: PruneThresholds, view: View = NOTHING
) -> Sequence[int]:
    """The results of ten that are chosen, each of so many tokens."""
    conversation = converse(make_loop(10))
    sizes = calibrate([float(tokens if message.results else 5) for message in conversation.messages])
    return choose_results(conversation, sizes, view, pruning, thresholds)
