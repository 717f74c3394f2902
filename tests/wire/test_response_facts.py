"""What is read of a response: usage, how it ended, errors, content; and the limits in a list of models."""

import json
import tracemalloc
import zlib
from collections.abc import Iterable
from typing import Any

import pytest

from gateway.core.limits.model_limits import Limits
from gateway.core.sizing.usage import Usage
from gateway.wire.model_list import MAX_BYTES, parse_model_list
from gateway.wire.reader import BATCH_BYTES, Reading, ResponseReader
from gateway.wire.reading import is_text_delta, is_window_exceeded, read_document
from gateway.wire.sse import SseEvent
from tests.shared_data import requires_shared
from tests.wire.recorded import load_some_responses, parse_stream

SSE = "text/event-stream; charset=utf-8"
JSON = "application/json"
_USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}


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


_LAST = [
    *(_text(usage=_USAGE), {"choices": [], "usage": _USAGE}),
    *({"choices": [{"index": 0, "delta": {}, "usage": _USAGE}]}, _text(x_groq={"usage": _USAGE})),
    _text(timings={"prompt_n": 4, "cache_n": 6, "predicted_n": 3}),
    {"type": "response.completed", "response": {"usage": {"input_tokens": 10, "output_tokens": 3}}},
]


@pytest.mark.parametrize("last", _LAST)
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


@pytest.mark.parametrize(
    ("documents", "usage"),
    [
        # The last one counts, and null is none.
        ([_text(usage={"prompt_tokens": 10, "completion_tokens": 1}), _text(usage=_USAGE), _text()], (10, 3)),
        # Usage is preferred to timings in any order.
        ([_text(usage=_USAGE), _text(timings={"prompt_n": 1, "predicted_n": 1})], (10, 3)),
        ([_text(timings={"prompt_n": 1, "predicted_n": 1}), _text(usage=_USAGE)], (10, 3)),
        # A stream of Messages that breaks off has told its prompt.
        ([{"type": "message_start", "message": {"usage": _MESSAGES}}], (100, 0)),
    ],
)
def test_of_several_usages_one_counts(documents: list[object], usage: tuple[int, int]) -> None:
    found = _read([_stream(*documents)]).usage
    assert found is not None and found[:2] == usage


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
        *(b'data: {"error": {"message": "no"}}\n\n', b'data: {"error": "no"}\n\n'),
        b"event: error\ndata: no json\n\n",
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n',
        *(b'data: {"type":"error","code":"x"}\n\n', b'data: {"object":"error","message":"no"}\n\n'),
        b'data: {"type":"response.failed","response":{"status":"failed","error":{"code":"x"}}}\n\n',
        b'data: {"choices":[{"index":0,"delta":{},"error":{"code":502},"finish_reason":"error"}]}\n\n',
        *(b'error: {"code":500}\n\n', b'{"error":{"message":"no"}}', b'[{"error":{"message":"no"}}]'),
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


def test_a_stream_without_blank_lines_is_understood() -> None:
    stream = _stream(_text(), _text("stop", usage=_USAGE), done=True).replace(b"\n\n", b"\n")
    assert _read([stream]) == Reading(Usage(10, 3), "stop", has_error=False, is_complete=True)


@pytest.mark.parametrize(
    "odd",
    [
        *(b'{"usage": NaN}', b'{"usage":"\\ud800"}', b"[" * 100_000, b'{"usage":\xff}', b"7"),
        *(b'{"choices":7}', b""),
    ],
)
def test_invalid_data_is_ignored(odd: bytes) -> None:
    stream = b"data: " + odd + b"\n\n" + _stream(_text("stop", usage=_USAGE))
    assert _read([stream]) == Reading(Usage(10, 3), "stop", has_error=False, is_complete=True)
    assert _read([odd], JSON).usage is None


@pytest.mark.parametrize(
    "odd",
    [
        *({"type": 7}, {"object": []}, {"choices": 7}, {"response": "x"}, {"status": [7]}, {"delta": 7}),
        *({"choices": [7, {"finish_reason": 7}]}, {"response": {"status": 7, "usage": 7}}, {"x_groq": [7]}),
        *({"message": 7}, {"error": []}, {"timings": {"prompt_n": "7"}}, {"index": 10**30}),
    ],
)
def test_a_field_of_a_wrong_type_loses_no_other(odd: dict[str, object]) -> None:
    stream = _stream({"stop_reason": "end_turn", "usage": _USAGE, **odd})
    assert _read([stream]) == Reading(Usage(10, 3), "end_turn", has_error=False, is_complete=True)
    stream = _stream({"stop_reason": "end_turn", "usage": {**_USAGE, "service": odd}})
    assert _read([stream]).usage == Usage(10, 3)


@pytest.mark.parametrize("count", [1, 200_000])
def test_of_a_large_body_only_the_facts_are_read(count: int) -> None:
    choices: list[object] = [{"message": {"content": "x" * (2_000_000 // count)}, "finish_reason": "stop"}]
    body = json.dumps({"choices": choices * count, "usage": _USAGE}).encode()
    tracemalloc.start()
    reading = _read([body], JSON)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reading.usage == Usage(10, 3) and reading.is_complete
    assert reading.finish_reason == ("stop" if count == 1 else None)
    assert peak_bytes < 4 * len(body)


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


@pytest.mark.parametrize("encoding", ["", "gzip"])
@pytest.mark.parametrize("last", ["message_stop", "response.completed", "response.incomplete"])
def test_the_last_event_is_told_before_the_stream_ends(last: str, encoding: str) -> None:
    """A client names the response at once, and a server may end its stream later."""
    told: list[bytes] = []
    reader = ResponseReader(SSE, encoding, lambda event, _: told.append(event.data))
    packer = zlib.compressobj(wbits=31)
    for kind in ("message_start", last):
        event = _stream({"type": kind})
        chunk = packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH) if encoding else event
        reader.feed(chunk)
        while reader.is_behind:
            reader.catch_up()
    assert [json.loads(data)["type"] for data in told] == ["message_start", last]


@pytest.mark.parametrize("event", [b"data:\n\n", b"data: x\n\n", b"data: 1\n\n"])
def test_a_stream_of_no_known_kind_is_not_read_to_its_end(event: bytes) -> None:
    heard: list[SseEvent] = []
    reader = ResponseReader(SSE, "", lambda event, _: heard.append(event))
    for _ in range(3):
        reader.feed(event * 2_000)
        reader.flush()
        while reader.is_behind:
            reader.catch_up()
    assert len(heard) == 1_000
    assert reader.finish().usage is None


def is_text(data: bytes) -> bool:
    document = read_document(data)
    return document is not None and is_text_delta(document)


@requires_shared
def test_a_piece_of_text_holds_neither_usage_nor_an_end_nor_an_error() -> None:
    """It is not looked into any further."""
    streams = [response.body for response in load_some_responses() if response.is_stream]
    events = [event.data for body in streams for event in parse_stream(body) if event.data != b"[DONE]"]
    texts = [data for data in events if is_text(data)]
    assert len(texts) > 0.8 * len(events)
    facts = ({"usage": _USAGE}, {"error": {"a": 1}}, {"type": "error"}, {"x_groq": {"usage": _USAGE}})
    for fact in (*facts, {"timings": {"prompt_n": 1}}, {"choices": [{"finish_reason": "stop"}]}):
        assert not is_text(json.dumps({**json.loads(texts[0]), **fact}).encode())


@pytest.mark.parametrize(
    ("reason", "is_exceeded"),
    [
        *(("model_context_window_exceeded", True), ("MODEL_CONTEXT_WINDOW_EXCEEDED", True)),
        *(("length", False), ("stop", False), ("", False), (None, False)),
    ],
)
def test_a_finish_reason_may_report_a_full_window(reason: str | None, is_exceeded: bool) -> None:
    assert is_window_exceeded(reason) is is_exceeded


def parse_list(*entries: object) -> dict[str, Limits]:
    return parse_model_list(json.dumps({"object": "list", "data": entries}).encode())


def read_limits(**fields: Any) -> Limits:
    """The limits of one model with these fields."""
    return parse_list({"id": "m", "object": "model", "created": 1_700_000_000, **fields}).get("m", Limits())


_PROVIDER = {"context_length": 65_536, "max_completion_tokens": 16_384}
_COPILOT = {"max_context_window_tokens": 9_000, "max_prompt_tokens": 8_000, "max_output_tokens": 1_000}
# The fields of a model, and its limits: the window, the prompt, the output.
_LIMITS: list[tuple[dict[str, object], tuple[int | None, int | None, int | None]]] = [
    # vLLM, SGLang
    ({"root": "/models/m", "parent": None, "max_model_len": 32_768}, (32_768, None, None)),
    # OpenRouter: the limit of the model, and the smaller one of its first provider
    ({"context_length": 131_072, "top_provider": _PROVIDER}, (65_536, None, 16_384)),
    ({"context_length": 8_192, "top_provider": dict.fromkeys(_PROVIDER)}, (8_192, None, None)),
    # Groq, Vercel
    ({"context_window": 131_072, "max_completion_tokens": 32_768}, (131_072, None, 32_768)),
    ({"context_window": 200_000, "max_tokens": 64_000}, (200_000, None, 64_000)),
    # Mistral, LM Studio
    ({"max_context_length": 32_768}, (32_768, None, None)),
    ({"max_context_length": 131_072, "loaded_context_length": 4_096}, (4_096, None, None)),
    # llama.cpp: the window of the training is no limit, the window of the server is
    ({"meta": {"n_ctx_train": 131_072, "n_ctx": 8_192}}, (8_192, None, None)),
    ({"meta": {"n_ctx_train": 131_072}}, (None, None, None)),
    # DeepInfra, Copilot, GitHub, Anthropic, OpenAI
    ({"metadata": {"context_length": 40_960, "max_tokens": 40_960}}, (40_960, None, None)),
    ({"capabilities": {"limits": _COPILOT}}, (9_000, 8_000, 1_000)),
    ({"limits": {"max_input_tokens": 131_072, "max_output_tokens": 4_096}}, (None, 131_072, 4_096)),
    ({"max_input_tokens": 200_000, "max_tokens": 64_000}, (None, 200_000, 64_000)),
    ({"owned_by": "system"}, (None, None, None)),
]


@pytest.mark.parametrize(("fields", "limits"), _LIMITS, ids=lambda value: str(value)[:60])
def test_the_limits_in_each_known_shape_are_found(fields: dict[str, object], limits: object) -> None:
    found = read_limits(**fields)
    assert (found.context, found.input, found.output) == limits


def test_an_output_as_large_as_the_window_is_no_limit() -> None:
    assert read_limits(context_length=8_192, max_completion_tokens=8_192) == Limits(context=8_192)


def test_the_list_may_be_the_document_or_under_models() -> None:
    together = [{"id": "a", "type": "chat", "context_length": 32_768}]
    cohere = {"models": [{"name": "a", "context_length": 32_768}]}
    both = {"models": [{"name": "a", "size": ""}], "data": together}
    for value in (together, cohere, both):
        assert parse_model_list(json.dumps(value).encode()) == {"a": Limits(context=32_768)}


def test_an_adapter_has_the_window_of_its_parent() -> None:
    base = {"id": "base", "parent": None, "max_model_len": 4_096}
    lora = {"id": "lora", "parent": "base", "max_model_len": None}
    assert parse_list(lora, base) == {"base": Limits(context=4_096), "lora": Limits(context=4_096)}
    assert parse_list({"id": "lora", "parent": "lora"}, {"id": "x", "parent": "y"}) == {}


def test_the_smallest_limit_of_several_deployments_with_one_name_counts() -> None:
    entries = [{"id": "m", "max_model_len": n} for n in (32_768, 8_192, 16_384)]
    assert parse_list(*entries) == {"m": Limits(context=8_192)}


@pytest.mark.parametrize(
    ("number", "tokens"),
    [
        *(("32768", 32_768), ("32768.0", 32_768), ("1e5", 100_000), ('"32768"', 32_768), ("256", 256)),
        *(("100000000", 100_000_000), ("255", None), ("0", None), ("-32768", None), ("100000001", None)),
        *(("32768.5", None), ("true", None), ("null", None), ('""', None), ('"true"', None)),
        *(('"32k"', None), ('"32_768"', None), ('" 32768"', None), ('"٣٢٧٦٨"', None), ("1e999", None)),
        *(("9" * 5_000, None), ('"' + "9" * 5_000 + '"', None), ("[32768]", None)),
        ('{"tokens": 32768}', None),
    ],
)
def test_implausible_numbers_are_ignored(number: str, tokens: int | None) -> None:
    data = f'{{"data": [{{"id": "m", "max_model_len": {number}}}]}}'.encode()
    assert parse_model_list(data).get("m", Limits()).context == tokens


def test_an_invalid_field_or_entry_does_not_affect_the_others() -> None:
    odd: list[object] = [
        *(7, None, "m", [], {"id": 7, "max_model_len": 4_096}, {"id": "", "max_model_len": 4_096})
    ]
    long_name = {"id": "m" * 257, "max_model_len": 4_096}
    good = {"id": "m", "max_model_len": "many", "context_window": 8_192, "top_provider": 7, "meta": []}
    assert parse_list(*odd, long_name, good) == {"m": Limits(context=8_192)}


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"null", b"7", b'"x"', b"{}", b"[]", b'{"data":null}', b'{"data":{"id":"m"}}'),
        *(b"<html>", b'{"data":[', b"\xff\xfe", b'{"data":[{"id":"\\ud800","n_ctx":4096}]}'),
        *(b"[" * 100_000, b'{"data":' * 50_000, b'{"data":[' + b'{"meta":' * 50_000),
    ],
    ids=lambda data: data[:20],
)
def test_anything_but_a_model_list_gives_no_limits(data: bytes) -> None:
    assert parse_model_list(data) == {}


def test_a_list_that_is_too_large_gives_no_limits() -> None:
    one = b'{"id":"m","max_model_len":4096}'
    assert parse_model_list(b"[" + one + b" " * (MAX_BYTES - len(one) - 2) + b"]") != {}
    assert parse_model_list(b"[" + one + b" " * (MAX_BYTES - len(one) - 1) + b"]") == {}
    assert parse_model_list(b"[" + one + b",0" * 1_000_001 + b"]") == {}
