"""The typed readings of usual events must say what a look at the whole document says."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.response.facts import ResponseFacts
from gateway.wire.sse import SseEvent
from tests.examples import examples

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
@given(st.lists(events, max_size=5))
def test_a_stream_read_by_types_says_the_same(datas: list[bytes]) -> None:
    _compare([SseEvent("message", data) for data in datas])


@examples(100, exhaustive=1_000)
@given(events)
def test_a_whole_body_read_by_types_says_the_same(data: bytes) -> None:
    _compare([SseEvent("", data)])


def _compare(said: list[SseEvent]) -> None:
    quick, thorough = ResponseFacts(), ResponseFacts()
    for event in said:
        quick.note(event)
        thorough.note_documents(event)
    assert _read(quick) == _read(thorough)


def _read(facts: ResponseFacts) -> dict[str, Any]:
    """A document that says nothing may be passed over, so whether there was one is no part of it."""
    return {
        "usage": facts.usage,
        "finish_reason": facts.finish_reason,
        "has_error": facts.has_error,
        "has_ended": facts.has_ended,
    }
