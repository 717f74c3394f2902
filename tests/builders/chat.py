"""Valid chat conversations, drawn and rendered, with pivots and marks that may apply to them.

A conversation is a list of messages as a client would send it next: it never ends with an assistant message.
Texts are small, because the tests are about structure.
"""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from multidict import CIMultiDict
from yarl import URL

from gateway.conversations.recognizer import Received, Recognizer
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.history.conversation import Conversation, find_open_group, is_boundary
from gateway.core.history.pivot import Batch, Mark, Pivot
from gateway.core.history.trimmed import HistorySource
from gateway.core.history.view import Size
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Policy
from gateway.core.sizing.estimate import Sizes
from gateway.headers import UpstreamHead
from gateway.outgoing.rewriter import Rewriter
from gateway.settings import UpstreamSettings
from gateway.tenants import Tenant
from gateway.wire.formats.chat import CHAT

JSON = dict[str, Any]

PLACEHOLDER = "[Old tool result content cleared]"
QUESTION = "What did we do so far?"
RESUME = "Continue if you have next steps"
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


def read(body: bytes, tenant: str = "t") -> Received:
    """Reads the body with a new recognizer."""
    return Recognizer(1 << 20, 1 << 20, 8).recognize(tenant, CHAT, body)


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


def converse(messages: Sequence[JSON]) -> Conversation:
    return read(render(messages)).conversation


def measure_sizes(received: Received) -> Sizes:
    """A token for four bytes."""
    count = len(received.conversation.messages)
    raws = [received.raw(position) for position in range(count)]
    messages = [Size(4 + len(raw) // 4, len(received.format.parse_entry(raw).text)) for raw in raws]
    leading = [received.raw(position) for position in range(-len(received.conversation.leading), 0)]
    return Sizes(messages=messages, environment=sum(4 + len(raw) // 4 for raw in leading))


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
        "opening_chars": None,
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


@st.composite
def pivots(draw: st.DrawFn, conversation: Conversation) -> Pivot | None:
    """Any pivot that is eligible for this conversation, with the opening kept, cut or left out; or none."""
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
        opening_chars=draw(st.sampled_from([None, 64, 256])),
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


def make_plan(pivot: Pivot | None = None, batches: Sequence[Batch] = (), output: int | None = None) -> Plan:
    return Plan(pivot=pivot, batches=tuple(batches), new_batch=None, received=0, sent=0, output=output)


def make_turn(received: Received, **fields: Any) -> Turn:
    upstream = UpstreamSettings(
        name="toy",
        base_url="http://127.0.0.1:1",
        api_key=None,
        allow=(),
        formats=frozenset({"chat"}),
        include_usage=True,
        discover=False,
        max_body_bytes=None,
        max_images=None,
        connect_seconds=1.0,
        idle_seconds=1.0,
    )
    defaults: JSON = {
        "tenant": Tenant(received.owner, None, "default"),
        "upstream": upstream,
        "upstream_head": UpstreamHead(
            "POST",
            URL("http://127.0.0.1:1/v1/chat/completions"),
            "/v1/chat/completions",
            CIMultiDict({"Content-Type": "application/json"}),
        ),
        "raw_headers": (),
        "raw_body": received.body.data,
        "received": received,
        "policy": Policy(),
        "limits": Limits(),
        "thresholds": None,
        "scope": "scope",
        "source": HistorySource(b"source", is_named=True),
        "head": None,
        "conversation_id": "c",
        "parent_id": None,
    }
    return Turn(**(defaults | fields))


RewrittenTurn = tuple[Received, Pivot | None, tuple[Batch, ...], bytes]


def rewrite(received: Received, pivot: Pivot | None, marks: tuple[Batch, ...]) -> bytes:
    return Rewriter(1 << 20).rewrite(make_turn(received), make_plan(pivot, marks))


def rewrite_somehow(data: st.DataObject, received: Received) -> RewrittenTurn:
    """With a pivot and marks that may apply to it."""
    pivot = data.draw(pivots(received.conversation))
    marks = data.draw(batches(received.conversation))
    return received, pivot, marks, rewrite(received, pivot, marks)
