"""Valid Responses conversations, drawn and rendered. Texts are small: the tests are about structure."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from gateway.conversations.reading import Received
from gateway.wire.registry import RESPONSES
from tests.builders.bodies import read_alone
from tests.decisions.builders import render_message, texts

JSON = dict[str, Any]

_TOOLS = b'[{"type":"function","name":"look","parameters":{}}]'
# The parts of the body before and behind the items.
_FRAMES = (
    (b'{"model":"toy","instructions":"Be brief.","tools":' + _TOOLS + b',"input":[', b"]}"),
    (b'{"input": [', b'], "model": "toy", "tools": ' + _TOOLS + b', "max_output_tokens": 3000}\n'),
    (b' { "big" : 1.10, "model" : "toy", "input" : [ ', b' ] , "tools" : ' + _TOOLS + b', "stream" : true }'),
)
_JOINERS = (b",", b", ", b"\n,\t")
_IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
_SCREEN = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AAAA"}


def _contents(kind: str = "input_text") -> st.SearchStrategy[Any]:
    part = st.builds(lambda text: {"type": kind, "text": text}, texts())
    parts = st.one_of(part, st.just(_IMAGE)) if kind == "input_text" else part
    return st.one_of(texts(), st.lists(parts, min_size=1, max_size=3))


@st.composite
def said(draw: st.DrawFn, role: str) -> list[JSON]:
    """One message, with its type and without."""
    content = draw(_contents("output_text" if role == "assistant" else "input_text"))
    typed = draw(st.booleans())
    return [{**({"type": "message"} if typed else {}), "role": role, "content": content}]


def _call(kind: str, identity: str) -> JSON:
    given: dict[str, JSON] = {
        "function_call": {"name": "look", "arguments": '{"path": "a b", "n": 1.10}'},
        "custom_tool_call": {"name": "patch", "input": "*** Begin"},
        "shell_call": {"action": {"commands": ["ls"]}},
        "local_shell_call": {"action": {"type": "exec", "command": ["ls"]}},
        "computer_call": {"action": {"type": "screenshot"}, "pending_safety_checks": []},
        "apply_patch_call": {"operation": {"type": "delete_file", "path": "a"}},
        "mcp_approval_request": {"name": "look", "arguments": "{}", "server_label": "s"},
    }
    name = "id" if kind == "mcp_approval_request" else "call_id"
    return {"type": kind, name: identity, **given[kind]}


@st.composite
def answers(draw: st.DrawFn, call: JSON) -> JSON:
    kind = call["type"]
    if kind == "mcp_approval_request":
        return {"type": "mcp_approval_response", "approval_request_id": call["id"], "approve": True}
    output: Any = draw(_contents())
    if kind == "computer_call":
        output = _SCREEN
    elif kind == "shell_call":
        output = [{"stdout": draw(texts()), "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
    return {"type": f"{kind}_output", "call_id": call["call_id"], "output": output}


_CALLS = (
    *("function_call", "function_call", "custom_tool_call", "shell_call", "local_shell_call"),
    *("computer_call", "apply_patch_call", "mcp_approval_request"),
)


@st.composite
def replies(draw: st.DrawFn, number: int) -> list[JSON]:
    """Items of one response, with reasoning between any two, and the client's outputs."""
    kinds = draw(st.lists(st.sampled_from(_CALLS), max_size=3))
    calls = [_call(kind, f"call_{number}_{at}") for at, kind in enumerate(kinds)]
    web: JSON = {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}}
    made = [*([web] if draw(st.booleans()) else []), *draw(said("assistant")), *calls]
    items: list[JSON] = []
    for at, item in enumerate(made):
        if draw(st.booleans()):
            secret = {"encrypted_content": "gAAAA"} if draw(st.booleans()) else {}
            items.append({"type": "reasoning", "id": f"rs_{number}_{at}", "summary": [], **secret})
        items.append(item)
    outputs = [draw(answers(call)) for call in draw(st.permutations(calls))]
    if outputs and draw(st.integers(0, 5)) == 0:
        # A message comes before all calls have their outputs.
        outputs[draw(st.integers(0, len(outputs) - 1)) : 0] = [*draw(said("user")), *draw(said("user"))]
    return [*items, *outputs]


@st.composite
def conversations(draw: st.DrawFn, min_turns: int = 0) -> list[JSON]:
    """Leading block, opening, turns of every kind; it never ends with the model's word."""
    items = [
        item
        for role in draw(st.lists(st.sampled_from(["developer", "user"]), max_size=3))
        for item in draw(said(role))
    ]
    for number in range(draw(st.integers(min_turns, 5))):
        items += draw(st.one_of(replies(number), replies(number), said("user"), said("developer")))
    if not any(item.get("role") == "user" for item in items) or items[-1].get("role") == "assistant":
        items += draw(said("user"))
    return items


def render_body(raws: Sequence[bytes], frame: int = 0) -> bytes:
    before, after = _FRAMES[frame]
    return before + _JOINERS[frame].join(raws) + after


def render(items: Sequence[JSON], frame: int = 0) -> bytes:
    return render_body([render_message(item) for item in items], frame)


@st.composite
def bodies(draw: st.DrawFn, min_turns: int = 0) -> bytes:
    """A request body with a valid conversation, its items written in several styles."""
    items = draw(conversations(min_turns))
    styles = draw(st.integers(0, 2**30))
    raws = [render_message(item, styles >> (2 * (at % 15))) for at, item in enumerate(items)]
    return render_body(raws, draw(frames()))


def frames() -> st.SearchStrategy[int]:
    return st.integers(0, len(_FRAMES) - 1)


def read(body: bytes, tenant: str = "t") -> Received:
    """Reads the body beside no other one."""
    return read_alone(tenant, RESPONSES, body)
