"""Drawn turns in Messages: the responses of an upstream, what the client sees of them, and its requests."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from gateway.core.history.recall import RecallRound
from gateway.wire.edits import Edit, apply_edits
from gateway.wire.formats.messages.message_collector import MessageCollector
from gateway.wire.formats.messages.recall import RECALL
from gateway.wire.formats.messages.request import parse_body
from gateway.wire.recall import RECALL_TOOL, AnsweredRecall, Insertion, RecallRequest, ReplyStitcher
from gateway.wire.request import RequestBody
from tests.toy.reply import Reply
from tests.toy.reply_messages import Frame, render_events, render_json
from tests.toy.seal import Sealed, seal, sign
from tests.wire.recorded import cut_anywhere, parse_stream

Block = dict[str, Any]

TOOLS = [{"name": "look", "input_schema": {"type": "object"}}]
_TEXTS = st.sampled_from(["Let me look.", "Zeilen\n\n\u2028 日本語 😀 \\", "recall_history", '{"index": 0}'])


def think(text: str) -> Block:
    return {"type": "thinking", "thinking": text, "signature": sign(text)}


def say(text: str) -> Block:
    return {"type": "text", "text": text}


def call(name: str, identity: str, **arguments: object) -> Block:
    return {"type": "tool_use", "id": identity, "name": name, "input": arguments}


def recall(identity: str, query: str = "path") -> Block:
    return call(RECALL_TOOL, identity, query=query)


@dataclass(frozen=True)
class Turn:
    """The blocks of each response. All but the last one only call the gateway's tool."""

    responses: list[list[Block]]

    @property
    def shown(self) -> list[Block]:
        return [block for response in self.responses for block in without_recalls(response)]

    @property
    def stop(self) -> str:
        return find_stop(without_recalls(self.responses[-1]))


def without_recalls(blocks: Sequence[Block]) -> list[Block]:
    return [block for block in blocks if block.get("name") != RECALL_TOOL]


def find_stop(blocks: Sequence[Block]) -> str:
    return "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"


@st.composite
def draw_turns(draw: st.DrawFn) -> Turn:
    """As a model makes them: thinking, then texts, then calls. The last one may call both tools, or none."""
    count = draw(st.integers(1, 4))
    responses = []
    for number in range(count):
        is_last = number == count - 1
        thoughts = [think(f"thought {number}")] if draw(st.booleans()) else []
        hidden = [{"type": "redacted_thinking", "data": seal(Sealed("x"))}] if draw(st.booleans()) else []
        texts = [say(draw(_TEXTS))] * draw(st.integers(0, 2))
        recalls = [recall(f"r{number}_{n}", draw(_TEXTS)) for n in range(draw(st.integers(1, 2)))]
        own = [call("look", f"own{n}", at=n) for n in range(draw(st.integers(0, 2)))] if is_last else []
        if is_last and not own and (thoughts or hidden):
            texts = [*texts, say("So it is.")]
        is_parallel: bool = draw(st.booleans())
        last = [*own, *(recalls if own and is_parallel else [])]
        calls: list[Block] = draw(st.permutations(last))
        responses.append([*thoughts, *hidden, *texts, *(calls if is_last else recalls)])
    return Turn(responses)


def render(blocks: Sequence[Block], number: int = 0, stop: str | None = None) -> bytes:
    """As a stream."""
    reply = Reply(finish_reason=stop or find_stop(blocks))
    return b"".join(render_events(reply, blocks, _make_frame(number)))


def render_body(blocks: Sequence[Block], number: int = 0, stop: str | None = None) -> bytes:
    return render_json(Reply(finish_reason=stop or find_stop(blocks)), blocks, _make_frame(number))


def _make_frame(number: int) -> Frame:
    usage = {"input_tokens": 100 + number, "output_tokens": 10 + number}
    return Frame(message_id=f"msg_{number}", model="toy", usage=usage, delta_chars=7)


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


def read_message(data: bytes) -> Any:
    """The content of a stream as the SDKs put it together."""
    collector = MessageCollector()
    fed = [response for event in parse_stream(data) if (response := collector.feed(event)) is not None]
    (response,) = fed
    (item,) = response.items or (b'{"content":[]}',)
    return json.loads(item)["content"]


def read_events(data: bytes) -> Iterator[Any]:
    return (json.loads(event.data) for event in parse_stream(data))


def make_request(messages: Sequence[object], /, **fields: object) -> RequestBody:
    return parse_body(
        json.dumps({"model": "toy", "max_tokens": 8, "messages": messages, "tools": TOOLS} | fields).encode()
    )


def insert(body: RequestBody, insertions: Sequence[Insertion]) -> bytes:
    """Several at one place keep their order."""
    joined: dict[int, bytes] = {}
    for insertion in insertions:
        joined[insertion.at] = joined.get(insertion.at, b"") + insertion.new
    return apply_edits(body.data, [Edit(at, at, new) for at, new in joined.items()])


def answer_own(blocks: Sequence[Block]) -> Block:
    """The client's next message."""
    calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": name, "content": "done"} for name in calls]
    return {"role": "user", "content": [*results, say("Go on.")]}


def is_inserted_only(before: bytes, after: bytes, insertions: Sequence[Insertion]) -> bool:
    """Whether what was received is there, in order, around what was inserted."""
    at, out = 0, b""
    for insertion in sorted(insertions, key=lambda each: each.at):
        out += before[at : insertion.at] + insertion.new
        at = insertion.at
    return out + before[at:] == after
