"""How many tokens a message has, by our own count."""

import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bounds.lanes import Lanes, take_all_steps
from gateway.core.history.transcript import TranscriptEntry
from gateway.core.history.view import CLEARED_TOKENS, Size
from gateway.planning.message_sizes import Sizer, TextCounter, measure_message
from gateway.planning.tokenizer import Tokenizer, count_by_length, count_by_length_up
from gateway.wire.formats.chat.text import parse_entry
from gateway.wire.formats.messages import MESSAGES
from gateway.wire.formats.responses import RESPONSES
from tests.decisions.builders import JSON, render, render_message
from tests.decisions.parts import receive_body
from tests.shared_data import requires_shared
from tests.toy.increments import (
    calibrated_errors,
    find_increments,
    load_recordings,
    make_recordings,
    plain_errors,
)

_MESSAGES: list[JSON] = [
    {"role": "system", "content": "x" * 400},
    {"role": "user", "content": "y" * 40},
]


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
    assert _measure(parse_entry, raw).tokens == 4 + len("Look.") + 1_000


def test_a_call_counts_its_name_its_arguments_and_a_frame() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    raw = render_message({"role": "assistant", "content": None, "tool_calls": [call, call]})
    assert _measure(parse_entry, raw).tokens == 4 + 2 * (30 + len("look") + len("{}"))


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
    assert _measure(parse_entry, raw).tokens == 4 + len("Done.") + len("I think. " * 10)


class RecordingCounter:
    """Counts a character as a token, and remembers what it was asked, and in which thread."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        # By the length of the text.
        self.threads: dict[int, set[int]] = {}

    def count(self, text: str) -> int:
        self.lengths.append(len(text))
        self.threads.setdefault(len(text), set()).add(threading.get_ident())
        return len(text)


@pytest.mark.parametrize("length", [65_536, 65_537, 1_000_000, 4_194_304])
def test_a_text_that_fits_a_window_is_counted_whole_in_pieces(length: int) -> None:
    counter = RecordingCounter()
    raw = render_message({"role": "user", "content": "z" * length})
    assert _measure(parse_entry, raw, counter.count).tokens == 4 + length
    assert sum(counter.lengths) == length
    assert max(counter.lengths) <= 65_536


@pytest.mark.parametrize("length", [4_194_305, 10_000_001, 30_000_000])
def test_of_a_longer_text_a_bounded_part_stands_for_the_rest(length: int) -> None:
    counter = RecordingCounter()
    raw = render_message({"role": "user", "content": "z" * length})
    assert _measure(parse_entry, raw, counter.count).tokens == 4 + length
    assert sum(counter.lengths) <= 64 * 65_536
    assert max(counter.lengths) <= 65_536


def test_a_message_of_too_many_values_is_counted_as_json_and_never_parsed() -> None:
    def refuse(raw: bytes) -> TranscriptEntry:
        raise AssertionError(len(raw))

    raw = b'{"role":"user","content":[' + b",".join([b"{}"] * 200_001) + b"]}"
    assert _measure(refuse, raw) == Size(len(raw), len(raw))


async def test_instructions_of_too_many_values_are_counted_as_json(sizer: Sizer) -> None:
    instructions = b"[" + b",".join([b"{}"] * 200_001) + b"]"
    body = b'{"input":"x","instructions":%b}' % instructions
    received = receive_body(body, RESPONSES)
    sizes = await sizer.measure(received, "tiktoken")
    assert sizes.environment == 4 + len(instructions)


async def test_a_message_that_stands_twice_is_counted_once() -> None:
    lanes, counter = Lanes(), RecordingCounter()
    sizer = Sizer({"tiktoken": counter.count}, 1 << 20, lanes)
    received = receive_body(render([{"role": "user", "content": "z" * 100}] * 2_500))
    sizes = await sizer.measure(received, "tiktoken")
    lanes.close()
    assert len(sizes.messages) == 2_500
    assert counter.lengths.count(100) == 1


_TOKENIZER = Tokenizer()


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("hello world", 2),
        ("tiktoken is great!", 6),
        ("2 + 2 = 4", 7),
        ("お誕生日おめでとう", 8),
        ("<|endoftext|>", 7),
    ],
)
def test_counts_are_those_of_o200k_base(text: str, tokens: int) -> None:
    assert _TOKENIZER.count(text) == tokens


@given(st.text(st.characters()))
def test_any_text_has_a_count_that_is_not_above_its_bytes(text: str) -> None:
    assert 0 <= _TOKENIZER.count(text) <= len(text.encode("utf-8", "surrogatepass"))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("unit", [" ", "\n ", "a", "A", "漢", "!", "\u0301", "\ud800", "\0", "1", "'S"])
def test_a_million_equal_characters_are_counted(unit: str) -> None:
    assert 0 < _TOKENIZER.count(unit * (1_000_000 // len(unit))) <= 1_000_000


def test_a_long_text_counts_about_as_much_as_its_parts() -> None:
    line = "The quick brown fox jumps over the lazy dog.\n"
    assert _TOKENIZER.count(line * 10_000) == pytest.approx(10_000 * _TOKENIZER.count(line), rel=0.001)


@pytest.mark.parametrize(
    ("length", "tokens"), [(0, 0), (1, 0), (2, 1), (5, 1), (6, 2), (10, 3), (160_000, 40_000)]
)
def test_the_count_by_length_rounds_like_javascript(length: int, tokens: int) -> None:
    assert count_by_length("x" * length) == tokens


def test_loading_needs_no_network() -> None:
    program = """
import sys
from gateway.planning.tokenizer import Tokenizer

def refuse(event, _):
    assert not event.startswith("socket."), event

sys.addaudithook(refuse)
print(Tokenizer().count("hello world"))
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (answer.stdout, answer.stderr) == ("2\n", "")


@pytest.mark.system(19)
@pytest.mark.parametrize(
    ("length", "tokens"), [(0, 0), (1, 1), (4, 1), (5, 2), (200_000, 50_000), (200_001, 50_001)]
)
def test_the_other_count_by_length_rounds_up(length: int, tokens: int) -> None:
    assert count_by_length_up("x" * length) == tokens


@pytest.fixture
async def exact_sizer() -> AsyncIterator[Sizer]:
    lanes = Lanes()
    yield Sizer({"tiktoken": Tokenizer().count, "chars": count_by_length}, 1 << 26, lanes)
    lanes.close()


async def test_steps_of_generated_sessions_are_estimated_well(exact_sizer: Sizer) -> None:
    steps = await find_increments(make_recordings(), exact_sizer, "tiktoken")
    assert len(steps) > 150
    assert median(plain_errors(steps)) <= 0.2
    assert median(calibrated_errors(steps)) <= 0.1


@pytest.mark.system(18)
@requires_shared
async def test_steps_of_recorded_sessions_are_estimated_well(exact_sizer: Sizer) -> None:
    steps = await find_increments(load_recordings(), exact_sizer, "tiktoken")
    bodies = [step for step in steps if step.is_complete]
    assert len(bodies) == 6
    assert median(plain_errors(bodies)) <= 0.2
    sessions = [step for step in steps if not step.is_complete]
    assert len(calibrated_errors(sessions)) > 150
    assert median(plain_errors(sessions)) <= 0.2
    assert median(calibrated_errors(sessions)) <= 0.1
