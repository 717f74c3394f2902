"""Drawn turns in Responses: what the upstream gives, what the client sees of it, and its requests."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from gateway.core.history.recall import RecallRound
from gateway.wire.edits import Edit, apply_edits
from gateway.wire.formats.responses.recall import RECALL
from gateway.wire.formats.responses.request import parse_body
from gateway.wire.recall import RECALL_TOOL, AnsweredRecall, Insertion, RecallRequest, ReplyStitcher
from gateway.wire.request import RequestBody
from tests.toy.reply import Reply
from tests.toy.reply_responses import Frame, render_events
from tests.toy.seal import Sealed, seal
from tests.toy.validity_responses import make_follower_mark
from tests.wire.recorded import cut_anywhere, parse_stream

Item = dict[str, Any]

TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
_TEXTS = st.sampled_from(["Let me look.", "Zeilen\n\n\u2028 日本語 😀 \\", "recall_history", '{"index": 0}'])


def think(mark: str, follower: Item) -> Item:
    secret = seal(Sealed(mark, make_follower_mark(follower)))
    summary = [{"type": "summary_text", "text": f"thought {mark}"}]
    return {"id": f"rs_{mark}", "type": "reasoning", "summary": summary, "encrypted_content": secret}


def say(mark: str, text: str) -> Item:
    part = {"type": "output_text", "annotations": [], "text": text}
    head = {"id": f"msg_{mark}", "type": "message", "status": "completed", "role": "assistant"}
    return head | {"content": [part]}


def call(name: str, mark: str, **arguments: object) -> Item:
    head = {"id": f"fc_{mark}", "type": "function_call", "status": "completed", "call_id": mark}
    return head | {"name": name, "arguments": json.dumps(arguments)}


def recall(mark: str, query: str = "path") -> Item:
    return call(RECALL_TOOL, mark, query=query)


def without_recalls(items: Sequence[Item]) -> list[Item]:
    return [item for item in items if item.get("name") != RECALL_TOOL]


@dataclass(frozen=True)
class Turn:
    """The items of each response. All but the last one only call the gateway's tool."""

    responses: list[list[Item]]

    @property
    def shown(self) -> list[Item]:
        return [item for response in self.responses for item in without_recalls(response)]


@st.composite
def draw_turns(draw: st.DrawFn) -> Turn:
    """As a model makes them: texts, then calls, and reasoning before the first of them. The last response may
    call both tools, or none.
    """
    count = draw(st.integers(1, 4))
    responses = []
    for number in range(count):
        is_last = number == count - 1
        texts = [say(f"{number}_{n}", draw(_TEXTS)) for n in range(draw(st.integers(0, 2)))]
        recalls = [recall(f"r{number}_{n}", draw(_TEXTS)) for n in range(draw(st.integers(1, 2)))]
        own = [call("look", f"own{n}", at=n) for n in range(draw(st.integers(0, 2)))] if is_last else []
        is_parallel: bool = draw(st.booleans())
        # Calls of the tool follow each other.
        last = [*own[:1], *(recalls if own and is_parallel else []), *own[1:]]
        items = [*texts, *(last if is_last else recalls)]
        has_thought: bool = draw(st.booleans())
        thoughts = [think(str(number), items[0])] if items and has_thought else []
        responses.append([*thoughts, *items])
    return Turn(responses)


def _make_frame(number: int) -> Frame:
    usage = {"input_tokens": 100 + number, "output_tokens": 10 + number, "total_tokens": 110 + 2 * number}
    tools = [*TOOLS, {"type": "function", "name": RECALL_TOOL, "parameters": {}}]
    request = {"model": "toy", "store": False, "tools": tools}
    return Frame(response_id=f"resp_{number}", request=request, usage=usage, delta_chars=7)


def render(items: Sequence[Item], number: int = 0, finish: str = "stop") -> bytes:
    """As a stream."""
    return b"".join(render_events(Reply(finish_reason=finish), items, _make_frame(number)))


def render_body(items: Sequence[Item], number: int = 0, finish: str = "stop") -> bytes:
    final = _make_frame(number).final(Reply(finish_reason=finish), items)
    return json.dumps(final, ensure_ascii=False).encode()


def without_echo(stream: bytes) -> bytes:
    """As if the tool had not been offered."""
    echo = b',{"type":"function","name":"recall_history","parameters":{}}'
    return stream.replace(echo, b"")


@dataclass
class Stitched:
    """What went to the client, and what each response asked for."""

    data: bytes
    requests: list[RecallRequest | None]
    stitcher: ReplyStitcher

    @property
    def answered(self) -> list[AnsweredRecall]:
        found = [request for request in self.requests if request is not None and not request.is_parallel]
        return [AnsweredRecall(request, answer(request)) for request in found]

    @property
    def rounds(self) -> list[RecallRound]:
        return [
            RecallRound(
                call=request.call,
                results=answer(request),
                shown=request.shown,
                said=request.said,
                is_parallel=request.is_parallel,
            )
            for request in self.requests
            if request is not None
        ]


def answer(request: RecallRequest) -> str:
    return RECALL.render_results(request, [f"found {call.id}: {call.query}" for call in request.calls])


def stitch(bodies: Sequence[bytes], *, seed: int | None = None) -> Stitched:
    """seed: of the places at which the bytes are cut."""
    stitcher = RECALL.make_stitcher()
    sent, requests = [], []
    for body in bodies:
        pieces = [body] if seed is None else cut_anywhere(body, seed)
        sent += [stitcher.feed(piece) for piece in pieces]
        requests.append(stitcher.end())
    return Stitched(b"".join([*sent, stitcher.finish()]), requests, stitcher)


def read_events(data: bytes) -> list[Any]:
    return [json.loads(event.data) for event in parse_stream(data)]


def make_request(items: Sequence[object] | str, /, **fields: object) -> RequestBody:
    return parse_body(
        json.dumps({"model": "toy", "store": False, "input": items, "tools": TOOLS} | fields).encode()
    )


def insert(body: RequestBody, insertions: Sequence[Insertion]) -> bytes:
    """Several at one place keep their order."""
    joined: dict[int, bytes] = {}
    for insertion in insertions:
        joined[insertion.at] = joined.get(insertion.at, b"") + insertion.new
    return apply_edits(body.data, [Edit(at, at, new) for at, new in joined.items()])


def answer_own(items: Sequence[Item]) -> list[Item]:
    """What the client sends next."""
    calls = [item["call_id"] for item in items if item["type"] == "function_call"]
    results: list[Item] = [{"type": "function_call_output", "call_id": name, "output": "x"} for name in calls]
    return [*results, {"role": "user", "content": "Go on."}]
