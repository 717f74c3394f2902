"""Valid Messages conversations, drawn and rendered, as `chat` does for Chat Completions.

Roles alternate, results come first, and it never ends with the assistant's word.
"""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from gateway.conversations.reading import Received
from gateway.wire.registry import MESSAGES
from tests.builders.bodies import read_alone
from tests.decisions.builders import render_message, texts
from tests.toy.seal import sign

JSON = dict[str, Any]

MARK: JSON = {"cache_control": {"type": "ephemeral"}}
IMAGE: JSON = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
_TOOLS = b'[{"name":"look","input_schema":{"type":"object"}}]'
_SYSTEM = b'[{"type":"text","text":"You look."},{"type":"text","text":"Well.","cache_control":{"type":"x"}}]'
# The parts of the body before and behind the messages.
_FRAMES = (
    (b'{"model":"toy","max_tokens":3000,"tools":' + _TOOLS + b',"messages":[', b"]}"),
    (
        b'{"messages": [',
        b'], "model": "toy", "system": ' + _SYSTEM + b', "tools": ' + _TOOLS + b', "max_tokens": 3000}\n',
    ),
    (
        b' { "max_tokens" : 3000 , "model" : "toy", "thinking":{"type":"adaptive"}, "messages" : [ ',
        b' ] , "system":"You look." , "tools" : ' + _TOOLS + b', "stream" : true }',
    ),
)
_JOINERS = (b",", b", ", b"\n,\t")
REMINDER = "<system-reminder>x</system-reminder>"
SERVER_CALL = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}
SERVER_RESULT = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"url": "u"}]}


def text_block(text: str, **fields: Any) -> JSON:
    return {"type": "text", "text": text, **fields}


def use(identity: str = "a", tool: str = "look", **given: Any) -> JSON:
    return {"type": "tool_use", "id": identity, "name": tool, "input": given}


def result(identity: str = "a", content: object = "done", **fields: Any) -> JSON:
    return {"type": "tool_result", "tool_use_id": identity, "content": content, **fields}


def thought(text: str = "hm") -> JSON:
    return {"type": "thinking", "thinking": text, "signature": sign(text)}


def _spoken() -> st.SearchStrategy[str]:
    """Never blank: that is refused."""
    return texts().filter(lambda text: bool(text.strip()))


def _texts_and_pictures() -> st.SearchStrategy[list[JSON]]:
    return st.lists(st.one_of(_spoken().map(text_block), st.just(IMAGE)), min_size=1, max_size=3)


def _user_contents() -> st.SearchStrategy[Any]:
    return st.one_of(_spoken(), _texts_and_pictures())


def _result_contents() -> st.SearchStrategy[Any]:
    return st.one_of(_spoken(), st.just(""), st.just([]), _texts_and_pictures())


@st.composite
def conversations(draw: st.DrawFn, min_turns: int = 0, max_turns: int = 6) -> list[JSON]:
    """A user, and turns of every kind: words, calls in parallel, and a user's words beside results."""
    messages: list[JSON] = [{"role": "user", "content": draw(_user_contents())}]
    for turn in range(draw(st.integers(min_turns, max_turns))):
        thoughts = [thought()] if draw(st.booleans()) else []
        said = [text_block("I look.")] if draw(st.booleans()) else []
        calls = [use(f"t{turn}-{number}", path="a b", n=1.5) for number in range(draw(st.integers(0, 3)))]
        words = [text_block(draw(_spoken()))] if not calls else said
        messages.append({"role": "assistant", "content": [*thoughts, *words, *calls]})
        if not calls:
            messages.append({"role": "user", "content": draw(_user_contents())})
            continue
        marks = draw(st.sampled_from([{}, {}, {"is_error": True}]))
        results = [
            result(call["id"], draw(_result_contents()), **marks) for call in draw(st.permutations(calls))
        ]
        beside = draw(_texts_and_pictures()) if draw(st.integers(0, 3)) == 0 else []
        messages.append({"role": "user", "content": [*results, *beside]})
    return with_mark_on_newest(messages) if draw(st.booleans()) else messages


def with_mark_on_newest(messages: Sequence[JSON]) -> list[JSON]:
    """As Claude Code sends them."""
    newest = messages[-1]
    if isinstance(newest["content"], str):
        return list(messages)
    *blocks, last = newest["content"]
    return [*messages[:-1], {**newest, "content": [*blocks, {**last, **MARK}]}]


def frames() -> st.SearchStrategy[int]:
    return st.integers(0, len(_FRAMES) - 1)


def render(messages: Sequence[JSON], frame: int = 0, styles: int = 0) -> bytes:
    before, after = _FRAMES[frame]
    raws = [render_message(message, styles >> (2 * (at % 15))) for at, message in enumerate(messages)]
    return before + _JOINERS[frame].join(raws) + after


@st.composite
def bodies(draw: st.DrawFn, min_turns: int = 0, max_turns: int = 6) -> bytes:
    """A request body with a valid conversation, its messages written in several styles."""
    messages = draw(conversations(min_turns, max_turns))
    return render(messages, draw(frames()), draw(st.integers(0, 2**30)))


def read(body: bytes, tenant: str = "t") -> Received:
    """Reads the body beside no other one."""
    return read_alone(tenant, MESSAGES, body)


def user(*blocks: Any) -> JSON:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> JSON:
    return {"role": "assistant", "content": list(blocks)}
