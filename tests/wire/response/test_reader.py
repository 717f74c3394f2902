import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable, Iterable
from functools import partial

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.sizing.usage import Usage
from gateway.wire.response.reader import BATCH_BYTES, Reading, ResponseReader
from gateway.wire.sse import SseEvent
from tests.shared_data import requires_shared
from tests.wire.recorded import USAGE_FLAGS, cut, cut_anywhere, load_responses

SSE = "text/event-stream; charset=utf-8"
JSON = "application/json"
_USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
_PACKERS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("br", partial(brotli.compress, quality=5)),
    ("zstd", zstandard.compress),
]


def _read(chunks: Iterable[bytes], content_type: str = SSE, encoding: str = "") -> Reading:
    reader = ResponseReader(content_type, encoding)
    for chunk in chunks:
        reader.feed(chunk)
        while reader.is_behind:
            reader.catch_up()
    reader.flush()
    while reader.is_behind:
        reader.catch_up()
    return reader.finish()


def _stream(*documents: object, done: bool = False) -> bytes:
    events = [b"data: " + json.dumps(document).encode() + b"\n\n" for document in documents]
    return b"".join(events) + (b"data: [DONE]\n\n" if done else b"")


def _text(finish: str | None = None, **more: object) -> dict[str, object]:
    choice = {"index": 0, "delta": {"content": "x"}, "finish_reason": finish}
    return {"object": "chat.completion.chunk", "choices": [choice], "usage": None, **more}


@pytest.mark.parametrize(
    "last",
    [
        _text(usage=_USAGE),
        {"choices": [], "usage": _USAGE},
        {"choices": [{"index": 0, "delta": {}, "usage": _USAGE}]},
        _text(x_groq={"usage": _USAGE}),
        _text(timings={"prompt_n": 4, "cache_n": 6, "predicted_n": 3}),
        {"type": "response.completed", "response": {"usage": {"input_tokens": 10, "output_tokens": 3}}},
    ],
)
def test_usage_is_found_in_every_place_where_upstreams_put_it(last: object) -> None:
    usage = _read([_stream(_text(), last)]).usage
    assert usage is not None and usage[:2] == (10, 3)


# The same request in each format and shape: 100 tokens of the prompt, of which 70 were read and 20 written.
_DETAILED = {"cached_tokens": 70, "cache_write_tokens": 20}
_CHAT = {"prompt_tokens": 100, "completion_tokens": 3, "prompt_tokens_details": _DETAILED}
_MESSAGES = {"input_tokens": 10, "cache_read_input_tokens": 70, "cache_creation_input_tokens": 20}
_RESPONSES = {"input_tokens": 100, "output_tokens": 3, "input_tokens_details": _DETAILED}
_RESPONSE = {"object": "response", "status": "completed", "usage": _RESPONSES}


@pytest.mark.parametrize(
    ("content_type", "data"),
    [
        (JSON, json.dumps({"choices": [{"finish_reason": "stop"}], "usage": _CHAT}).encode()),
        (SSE, _stream(_text("stop"), {"choices": [], "usage": _CHAT}, done=True)),
        (SSE, _stream(_text("stop", usage=_CHAT), done=True)),
        # Moonshot and Groq.
        (SSE, _stream({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": _CHAT}]})),
        (SSE, _stream(_text("stop", x_groq={"usage": _CHAT}))),
        (
            JSON,
            json.dumps(
                {"type": "message", "stop_reason": "end_turn", "usage": {**_MESSAGES, "output_tokens": 3}}
            ).encode(),
        ),
        # The second half repeats the counts, leaves them out, or has zeros.
        *[
            (
                SSE,
                _stream(
                    {"type": "message_start", "message": {"usage": {**_MESSAGES, "output_tokens": 1}}},
                    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
                ),
            )
            for usage in (
                {"output_tokens": 3},
                {**_MESSAGES, "output_tokens": 3},
                {**dict.fromkeys(_MESSAGES, 0), "output_tokens": 3},
            )
        ],
        (JSON, json.dumps(_RESPONSE).encode()),
        (SSE, _stream({"type": "response.completed", "response": _RESPONSE})),
    ],
)
def test_cached_and_written_tokens_are_kept_in_every_format(content_type: str, data: bytes) -> None:
    assert _read([data], content_type).usage == Usage(100, 3, 70, 20)


def test_the_last_usage_counts_and_null_is_not_usage() -> None:
    early = {"prompt_tokens": 10, "completion_tokens": 1}
    stream = _stream(_text(usage=early), _text("stop", usage=_USAGE), _text())
    assert _read([stream]).usage == Usage(10, 3)


def test_usage_is_preferred_to_timings_in_any_order() -> None:
    stream = _stream(_text(usage=_USAGE), _text(timings={"prompt_n": 1, "predicted_n": 1}))
    assert _read([stream]).usage == Usage(10, 3)


def test_the_two_halves_of_anthropics_usage_are_added_up() -> None:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 4, "cache_read_input_tokens": 6}}}
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}}
    whole = _stream(start, delta, end, {"type": "message_stop"})
    assert _read([whole]) == Reading(Usage(10, 3, 6), "end_turn", has_error=False, is_complete=True)
    assert _read([_stream(start, delta)]) == Reading(
        Usage(10, 0, 6), None, has_error=False, is_complete=False
    )


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ({"status": "completed", "incomplete_details": None}, "completed"),
        (
            {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
            "max_output_tokens",
        ),
        ({"status": "in_progress"}, None),
    ],
)
def test_responses_have_their_own_finish_reasons(response: dict[str, object], reason: str | None) -> None:
    reading = _read([_stream({"type": "response.x", "response": response})])
    assert (reading.finish_reason, reading.is_complete) == (reason, reason is not None)
    assert _read([json.dumps({"object": "response", **response}).encode()], JSON).finish_reason == reason


@pytest.mark.parametrize(
    "error",
    [
        b'data: {"error": {"message": "no"}}\n\n',
        b'data: {"error": "no"}\n\n',
        b"event: error\ndata: no json\n\n",
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n',
        b'data: {"type":"error","code":"x"}\n\n',
        b'data: {"object":"error","message":"no"}\n\n',
        b'data: {"type":"response.failed","response":{"status":"failed","error":{"code":"x"}}}\n\n',
        b'data: {"choices":[{"index":0,"delta":{},"error":{"code":502},"finish_reason":"error"}]}\n\n',
        b'error: {"code":500}\n\n',
        b'{"error":{"message":"no"}}',
        b'[{"error":{"message":"no"}}]',
    ],
)
def test_errors_of_every_shape_are_found(error: bytes) -> None:
    assert _read([error]).has_error
    assert _read([b": hello\n\n" if error[0] not in b"{[" else b"  ", error]).has_error


def test_a_text_about_errors_is_not_an_error() -> None:
    document = {
        "choices": [{"index": 0, "delta": {"content": '"error": {"usage": 1} [DONE]'}}],
        "error": None,
    }
    assert _read([_stream(document)]) == Reading(None, None, has_error=False, is_complete=False)


def test_a_stream_is_complete_after_its_end_marker() -> None:
    assert not _read([_stream(_text())]).is_complete
    assert _read([_stream(_text(), done=True)]).is_complete
    assert _read([_stream(_text("stop"))]) == Reading(None, "stop", has_error=False, is_complete=True)
    assert _read([_stream(_text("stop"), _text(None))]).finish_reason == "stop"


def test_a_json_body_is_complete_if_it_parses() -> None:
    body = json.dumps({"choices": [{"finish_reason": "stop"}], "usage": _USAGE}).encode()
    expected = Reading(Usage(10, 3), "stop", has_error=False, is_complete=True)
    assert _read([body], JSON) == expected
    assert _read([b" \n" * 100_000, b" ", body], JSON) == expected
    assert _read([body], SSE) == expected
    assert not _read([body[:-1]], JSON).is_complete
    assert not _read([json.dumps({"a": [{}, {}]}, indent=1).encode()[:-2]], JSON).is_complete


@pytest.mark.parametrize("content_type", [JSON, "", "text/plain"])
@pytest.mark.parametrize("start", [b"", b": hi\n\n", b"\xef\xbb\xbf", b"\n\n", b"event: x\n"])
def test_a_stream_with_another_content_type_is_recognized(content_type: str, start: bytes) -> None:
    stream = start + _stream(_text(), _text("stop", usage=_USAGE))
    assert _read([stream], content_type).usage == Usage(10, 3)
    assert _read(cut(stream, 1), content_type).usage == Usage(10, 3)


def test_a_stream_without_blank_lines_is_understood() -> None:
    stream = _stream(_text(), _text("stop", usage=_USAGE), done=True).replace(b"\n\n", b"\n")
    assert _read([stream]) == Reading(Usage(10, 3), "stop", has_error=False, is_complete=True)


@pytest.mark.parametrize(
    "odd",
    [
        b'{"usage": NaN}',
        b'{"usage":"\\ud800"}',
        b"[" * 100_000,
        b'{"usage":\xff}',
        b"7",
        b'{"choices":7}',
        b"",
    ],
)
def test_invalid_data_is_ignored(odd: bytes) -> None:
    stream = b"data: " + odd + b"\n\n" + _stream(_text("stop", usage=_USAGE))
    assert _read([stream]) == Reading(Usage(10, 3), "stop", has_error=False, is_complete=True)
    assert _read([odd], JSON).usage is None


@pytest.mark.parametrize(("encoding", "pack"), _PACKERS)
def test_a_compressed_response_that_breaks_off_keeps_its_facts_so_far(
    encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    stream = _stream(
        *[_text(usage={"prompt_tokens": 1 + i, "noise": zlib.crc32(b"%d" % i)}) for i in range(6_000)]
    )
    body = pack(stream)
    reading = _read(cut(body[: len(body) // 2], 10_000), SSE, encoding)
    assert reading.usage is not None
    assert not reading.is_complete


def test_broken_or_unknown_codings_give_no_facts_and_raise_nothing() -> None:
    nothing = Reading(None, None, has_error=False, is_complete=False)
    stream = _stream(_text("stop", usage=_USAGE))
    for encoding in ("gzip", "deflate", "br", "zstd", "rot13"):
        assert _read([stream, stream], SSE, encoding) == nothing


def test_a_long_stream_is_not_kept_in_memory() -> None:
    reader = ResponseReader(SSE, "")
    events = _stream(_text()) * 10
    tracemalloc.start()
    for _ in range(1_000):
        reader.feed(bytes(bytearray(events)))  # a new object each time, as from a socket
        while reader.is_behind:
            reader.catch_up()
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 3 * BATCH_BYTES < 1_000 * len(events)
    assert reader.finish().usage is None


@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([b"data: ", b"\n\n", b'{"usage":', b"}"]))))
def test_no_bytes_raise_an_error(chunks: list[bytes]) -> None:
    for encoding in ("", "gzip"):
        for content_type in (SSE, JSON):
            whole = _read([b"".join(chunks)], content_type, encoding)
            assert _read(chunks, content_type, encoding) == whole


_JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["usage", "choices", "error", "type", "message", "response", "delta", "prompt_tokens"]
            ),
            inner,
        ),
    ),
)


@given(_JSON_VALUES)
def test_no_shape_of_a_document_raises_an_error(document: object) -> None:
    stream, body = _stream(document), json.dumps(document).encode()
    assert _read(cut(stream, 1)) == _read([stream])
    assert _read(cut(body, 1), JSON) == _read([body], JSON)


@requires_shared
def test_recorded_responses_give_the_same_facts_however_they_are_cut_or_packed() -> None:
    for response in load_responses():
        whole = _read([response.body], response.content_type)
        assert whole.is_complete, response.file
        assert whole.finish_reason, response.file
        assert not whole.has_error, response.file
        if response.flags & USAGE_FLAGS or not response.is_stream:
            assert whole.usage, response.file
        for chunks in (cut(response.body, 1), cut(response.body, 7), cut_anywhere(response.body, 2)):
            assert _read(chunks, response.content_type) == whole, response.file
        for encoding, pack in _PACKERS:
            packed = pack(response.body)
            assert _read(cut_anywhere(packed, 3), response.content_type, encoding) == whole, response.file


@given(st.integers(1, 40))
def test_the_listener_gets_every_event_once(size: int) -> None:
    heard: list[bytes] = []
    stream = b"".join(b'event: e\ndata: {"n":%d}\n\n' % number for number in range(5))
    whole = b'{"object":"response"}'
    for body, kind in ((stream, "text/event-stream"), (whole, "application/json")):
        reader = ResponseReader(kind, "", lambda event: heard.append(event.data))
        for chunk in cut(body, size):
            reader.feed(chunk)
        reader.finish()
    assert heard == [*(b'{"n":%d}' % number for number in range(5)), whole]


@pytest.mark.parametrize("event", [b"data:\n\n", b"data: x\n\n", b"data: 1\n\n"])
def test_a_stream_of_no_known_kind_is_not_read_to_its_end(event: bytes) -> None:
    heard: list[SseEvent] = []
    reader = ResponseReader(SSE, "", heard.append)
    for _ in range(3):
        reader.feed(event * 2_000)
        reader.flush()
        while reader.is_behind:
            reader.catch_up()
    assert len(heard) == 1_000
    assert reader.finish().usage is None


@pytest.mark.parametrize("encoding", ["", "gzip"])
@pytest.mark.parametrize("last", ["message_stop", "response.completed", "response.incomplete"])
def test_the_last_event_is_told_before_the_stream_ends(last: str, encoding: str) -> None:
    """A client names the response at once, and a server may end its stream later."""
    told: list[bytes] = []
    reader = ResponseReader(SSE, encoding, lambda event: told.append(event.data))
    packer = zlib.compressobj(wbits=31)
    for kind in ("message_start", last):
        event = _stream({"type": kind})
        chunk = packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH) if encoding else event
        reader.feed(chunk)
        while reader.is_behind:
            reader.catch_up()
    assert [json.loads(data)["type"] for data in told] == ["message_start", last]
