from collections.abc import AsyncIterator

import pytest

from gateway.conversations.recognizer import Recognizer
from gateway.core.history.view import CLEARED_TOKENS, Size
from gateway.planning.message_sizes import Sizer, measure_message
from gateway.planning.tokenizer import count_by_length
from gateway.wire.formats.chat.text import parse_entry
from gateway.wire.formats.messages import MESSAGES
from gateway.wire.formats.responses import RESPONSES
from tests.builders.chat import JSON, read, render, render_message

_MESSAGES: list[JSON] = [
    {"role": "system", "content": "x" * 400},
    {"role": "user", "content": "y" * 40},
]
_BIG: list[JSON] = [*_MESSAGES, {"role": "user", "content": "z" * 40_000}]


@pytest.fixture
async def sizer() -> AsyncIterator[Sizer]:
    made = Sizer({"tiktoken": len, "chars": count_by_length}, 1 << 20)
    yield made
    made.close()


async def test_each_estimator_has_its_own_counts_of_the_same_messages(sizer: Sizer) -> None:
    received = read(render(_MESSAGES))
    for _ in range(2):
        by_token = await sizer.measure(received, "tiktoken")
        by_length = await sizer.measure(received, "chars")
        assert [size.tokens for size in by_token.messages] == [44]
        assert [size.tokens for size in by_length.messages] == [14]
        assert by_token.environment > 404 > 2 * by_length.environment > 2 * 104


async def test_large_bodies_are_counted_in_a_thread_with_the_same_result(sizer: Sizer) -> None:
    sizes = await sizer.measure(read(render(_BIG)), "chars")
    assert [size.tokens for size in sizes.messages] == [14, 10_004]
    assert await sizer.count("z" * 40_000, "chars") == 10_000


async def test_instructions_that_cannot_be_parsed_are_counted_as_json(sizer: Sizer) -> None:
    body = b'{"input":"x","instructions":"\xed\xa0\x80"}'
    received = Recognizer(1 << 20, 1 << 20, 8).recognize("t", RESPONSES, body)
    sizes = await sizer.measure(received, "tiktoken")
    assert sizes.environment > 0


@pytest.mark.parametrize("length", [4, 4_000_000])
def test_a_picture_costs_the_same_whatever_its_bytes(length: int) -> None:
    url = "data:image/png;base64," + "A" * length
    parts = [{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": url}}]
    raw = render_message({"role": "user", "content": parts})
    assert measure_message(parse_entry, len, raw).tokens == 4 + len("Look.") + 1_000


def test_a_call_counts_its_name_its_arguments_and_a_frame() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    raw = render_message({"role": "assistant", "content": None, "tool_calls": [call, call]})
    assert measure_message(parse_entry, len, raw).tokens == 4 + 2 * (30 + len("look") + len("{}"))


def test_beside_results_other_texts_are_kept_and_placeholders_are_counted() -> None:
    results = [{"type": "tool_result", "tool_use_id": str(at), "content": "x" * 100 * at} for at in (1, 2)]
    beside = {"type": "text", "text": "Stop."}
    raw = render_message({"role": "user", "content": [*results, beside]})
    size = measure_message(MESSAGES.parse_entry, len, raw)
    assert size == Size(4 + 300 + len("Stop."), 200, 0, CLEARED_TOKENS + len("Stop."))
    alone = measure_message(MESSAGES.parse_entry, len, render_message({"role": "user", "content": [beside]}))
    assert (alone.chars, alone.kept) == (len("Stop."), 0)


def test_reasoning_is_counted_although_it_is_never_quoted() -> None:
    said = {"role": "assistant", "content": "Done.", "reasoning_content": "I think. " * 10}
    raw = render_message(said)
    assert measure_message(parse_entry, len, raw).tokens == 4 + len("Done.") + len("I think. " * 10)
