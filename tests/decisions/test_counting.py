"""How many tokens a message has, by our own count."""

from collections.abc import AsyncIterator, Callable

import pytest

from gateway.bounds.lanes import Lanes, take_all_steps
from gateway.core.history.transcript import TranscriptEntry
from gateway.core.history.view import CLEARED_TOKENS, Size
from gateway.planning.message_sizes import Sizer, TextCounter, Tokenizer, count_by_length, measure_message
from gateway.wire.registry import CHAT, MESSAGES
from tests.decisions.builders import JSON, render, render_message
from tests.decisions.parts import receive_body

_MESSAGES: list[JSON] = [{"role": "system", "content": "x" * 400}, {"role": "user", "content": "y" * 40}]


def _measure(parse: Callable[[bytes], TranscriptEntry], raw: bytes, count: TextCounter = len) -> Size:
    return take_all_steps(measure_message(parse, count, raw))


@pytest.fixture
async def sizer() -> AsyncIterator[Sizer]:
    lanes = Lanes()
    yield Sizer({"tiktoken": len, "chars": count_by_length}, 1 << 20, lanes)
    lanes.close()


async def test_each_estimator_has_its_own_counts_of_the_same_messages(sizer: Sizer) -> None:
    received = receive_body(render(_MESSAGES))
    for _ in range(2):
        by_token = await sizer.measure(received, "tiktoken")
        by_length = await sizer.measure(received, "chars")
        assert [size.tokens for size in by_token.messages] == [44]
        assert [size.tokens for size in by_length.messages] == [14]
        assert by_token.environment > 404 > 2 * by_length.environment > 2 * 104


@pytest.mark.parametrize("length", [4, 4_000_000])
def test_a_picture_costs_the_same_whatever_its_bytes(length: int) -> None:
    url = "data:image/png;base64," + "A" * length
    parts = [{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": url}}]
    raw = render_message({"role": "user", "content": parts})
    assert _measure(CHAT.parse_entry, raw).tokens == 4 + len("Look.") + 1_000


def test_a_call_counts_its_name_its_arguments_and_a_frame() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    raw = render_message({"role": "assistant", "content": None, "tool_calls": [call, call]})
    assert _measure(CHAT.parse_entry, raw).tokens == 4 + 2 * (30 + len("look") + len("{}"))


def test_beside_results_other_texts_are_kept_and_placeholders_are_counted() -> None:
    results = [{"type": "tool_result", "tool_use_id": str(at), "content": "x" * 100 * at} for at in (1, 2)]
    beside = {"type": "text", "text": "Stop."}
    raw = render_message({"role": "user", "content": [*results, beside]})
    size = _measure(MESSAGES.parse_entry, raw)
    assert size == Size(4 + 300 + len("Stop."), 200, 0, CLEARED_TOKENS + len("Stop."))
    alone = _measure(MESSAGES.parse_entry, render_message({"role": "user", "content": [beside]}))
    assert (alone.chars, alone.kept) == (len("Stop."), 0)


def test_reasoning_is_counted_although_it_is_never_quoted() -> None:
    said = {"role": "assistant", "content": "Done.", "reasoning_content": "I think. " * 10}
    raw = render_message(said)
    assert _measure(CHAT.parse_entry, raw).tokens == 4 + len("Done.") + len("I think. " * 10)


class RecordingCounter:
    """Counts a character as a token, and remembers what it was asked."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def count(self, text: str) -> int:
        self.lengths.append(len(text))
        return len(text)


@pytest.mark.parametrize("length", [65_536, 65_537, 1_000_000, 4_194_304])
def test_a_text_that_fits_a_window_is_counted_whole_in_pieces(length: int) -> None:
    counter = RecordingCounter()
    raw = render_message({"role": "user", "content": "z" * length})
    assert _measure(CHAT.parse_entry, raw, counter.count).tokens == 4 + length
    assert sum(counter.lengths) == length
    assert max(counter.lengths) <= 65_536


@pytest.mark.parametrize("length", [4_194_305, 10_000_001, 30_000_000])
def test_of_a_longer_text_a_bounded_part_stands_for_the_rest(length: int) -> None:
    counter = RecordingCounter()
    raw = render_message({"role": "user", "content": "z" * length})
    assert _measure(CHAT.parse_entry, raw, counter.count).tokens == 4 + length
    assert sum(counter.lengths) <= 64 * 65_536
    assert max(counter.lengths) <= 65_536


def test_a_message_of_too_many_values_is_counted_as_json_and_never_parsed() -> None:
    def refuse(raw: bytes) -> TranscriptEntry:
        raise AssertionError(len(raw))

    raw = b'{"role":"user","content":[' + b",".join([b"{}"] * 200_001) + b"]}"
    assert _measure(refuse, raw) == Size(len(raw), len(raw))


_TOKENIZER = Tokenizer()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("unit", [" ", "\n ", "a", "A", "漢", "!", "\u0301", "\ud800", "\0", "1", "'S"])
def test_a_million_equal_characters_are_counted(unit: str) -> None:
    assert 0 < _TOKENIZER.count(unit * (1_000_000 // len(unit))) <= 1_000_000
