"""A document that is taken for a piece of text must not hold any other fact."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.response.facts import (
    choices_of,
    find_finish_reason,
    has_error,
    is_text_delta,
    is_window_exceeded,
    parse_documents,
)
from tests.examples import examples
from tests.shared_data import requires_shared
from tests.wire.recorded import load_responses, parse_stream

counts = st.sampled_from([None, 0, 3, 7, 2.0, True, "5"])
usages: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.just({}),
    st.fixed_dictionaries(
        {},
        optional={
            "prompt_tokens": counts,
            "completion_tokens": counts,
            "total_tokens": counts,
            "input_tokens": counts,
            "prompt_tokens_details": st.just({"cached_tokens": 2}),
        },
    ),
)
errors = st.sampled_from([None, {}, {"message": "no"}])
choices = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "finish_reason": st.sampled_from([None, "", "stop", "length", 3]),
            "delta": st.just({"content": "x"}),
            "usage": usages,
            "error": errors,
        },
    ),
    max_size=3,
)
documents = st.fixed_dictionaries(
    {},
    optional={
        "object": st.sampled_from(["chat.completion.chunk", "chat.completion", "error", "response", None]),
        "choices": choices,
        "usage": usages,
        "error": errors,
        "type": st.sampled_from(["message_stop", "error", None]),
        "timings": st.sampled_from([None, {"prompt_n": 4, "predicted_n": 1}]),
        "x_groq": st.sampled_from([None, {"usage": {"prompt_tokens": 9}}]),
        "response": st.sampled_from([None, {"status": "completed"}]),
    },
)
events = st.one_of(
    documents.map(msgspec.json.encode),
    st.sampled_from([b"[DONE]", b" [DONE] ", b"", b"no json", b"[]", b"{}", b'{"a":1}\n[DONE]']),
)


@examples(100, exhaustive=2_000)
@given(events)
def test_a_piece_of_text_holds_neither_usage_nor_an_end_nor_an_error(data: bytes) -> None:
    _check(data)


@requires_shared
def test_most_recorded_chunks_are_pieces_of_text_and_hold_nothing_else() -> None:
    streams = [response.body for response in load_responses() if response.is_stream]
    found = [is_text for body in streams for event in parse_stream(body) for is_text in _check(event.data)]
    assert found.count(True) > 0.9 * len(found)


def _check(data: bytes) -> list[bool]:
    """For each document: is it a piece of text? If so, it must hold nothing else."""
    documents = parse_documents(data) or []
    for document in filter(is_text_delta, documents):
        assert not has_error(document)
        assert find_finish_reason(document) is None
        assert document.get("type") != "message_stop"
        places = [document, *choices_of(document), document.get("x_groq"), document.get("response")]
        assert not any(isinstance(place, dict) and place.get("usage") for place in places)
        assert not document.get("timings")
    return [is_text_delta(document) for document in documents]


@pytest.mark.parametrize(
    ("reason", "is_exceeded"),
    [
        ("model_context_window_exceeded", True),
        ("MODEL_CONTEXT_WINDOW_EXCEEDED", True),
        ("length", False),
        ("stop", False),
        ("", False),
        (None, False),
    ],
)
def test_a_finish_reason_may_report_a_full_window(reason: str | None, is_exceeded: bool) -> None:
    assert is_window_exceeded(reason) is is_exceeded
