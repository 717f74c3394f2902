"""The sums that judge a run, on histories small enough to count by hand, and one run against the bare toy."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.toy.agent import PLAIN, Shape, make_session
from tests.toy.counting import TokenCounter
from tests.toy.economics import (
    Sizes,
    fewest_summaries,
    fewest_summaries_trimmed,
    hard_line,
    measure,
    prefix_breaks,
    prefix_reuse,
    sent_with_opening,
    shared_bytes,
    simulate,
    smallest_window,
    summary_budget,
    summary_budget_trimmed,
)
from tests.toy.running import run_session
from tests.toy.trimming import keep_newest
from tests.toy.upstream import ToyUpstream


def body(*contents: str, max_tokens: int = 1) -> bytes:
    messages = [{"role": "user", "content": content} for content in contents]
    return json.dumps({"max_tokens": max_tokens, "messages": messages}).encode()


@given(st.binary(), st.binary(), st.binary())
def test_shared_bytes_is_the_common_beginning(common: bytes, left: bytes, right: bytes) -> None:
    length = shared_bytes(common + left, common + right)
    assert length >= len(common)
    assert (common + left)[:length] == (common + right)[:length]
    before, after = (common + left)[length:], (common + right)[length:]
    assert not before or not after or before[0] != after[0]


def test_a_growing_history_never_breaks_the_prefix() -> None:
    bodies = [body("a", max_tokens=1), body("a", "b", max_tokens=2), body("a", "b", "c")]
    assert prefix_breaks(bodies) == []
    assert prefix_reuse(bodies) > 0.4


def test_a_changed_message_breaks_the_prefix() -> None:
    assert prefix_breaks([body("a", "b"), body("a", "x", "c"), body("a", "x", "c", "d"), body("a")]) == [1, 3]


LINES = [(16_000, 12_000), (32_000, 24_000), (128_000, 92_000), (200_000, 150_000)]


@pytest.mark.parametrize(("window", "line"), LINES)
def test_the_hard_line(window: int, line: float) -> None:
    assert hard_line(window) == line


def test_fewest_summaries_counted_by_hand() -> None:
    # The line is at 12,000; the prompt passes it with the twelfth group. The tail of 2,400 holds two groups,
    # so the prompt is then 1,000 + 1,500 + 2,000, and at most nine groups stay below the line.
    ideal = simulate(Sizes(1_000, (1_000,) * 30), 16_000)
    assert ideal.prompt_tokens[11:14] == (12_000, 4_500, 5_500)
    assert ideal.summaries == 3
    assert ideal.budget == 5
    assert max(ideal.prompt_tokens) <= 12_000


def test_a_group_larger_than_the_tail_is_kept_whole() -> None:
    ideal = simulate(Sizes(1_000, (5_000,) * 6), 16_000)
    assert max(ideal.prompt_tokens) <= 12_000


def test_a_floor_that_never_fits_is_no_loop() -> None:
    ideal = simulate(Sizes(13_000, (1_000,) * 5), 16_000)
    assert ideal.summaries <= 5


def test_a_session_below_the_line_needs_no_summary() -> None:
    session, counter = make_session(10, 1), TokenCounter()
    assert fewest_summaries(session, counter, 128_000) == summary_budget(session, counter, 128_000) == 0
    assert smallest_window(session, counter) < 8_000


def test_a_client_that_trims_needs_none_if_its_requests_fit_and_as_many_as_untrimmed_if_not() -> None:
    session, counter = make_session(40, 1, "talk", 600), TokenCounter()
    small = replace(session, trim=keep_newest(10))
    large = replace(session, trim=keep_newest(60))
    assert fewest_summaries_trimmed(small, counter, 16_000) == 0
    assert summary_budget_trimmed(small, counter, 16_000) == 2
    fewest = fewest_summaries(session, counter, 16_000)
    assert fewest_summaries_trimmed(large, counter, 16_000) == fewest > 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_run_without_a_gateway_is_refused_only_past_the_window(stream: bool) -> None:
    session = make_session(25, 2, "many_users")
    async with ToyUpstream(window=12_000, bias=1.3) as toy:
        run = await run_session(session, toy.base_url, toy, Shape(max_tokens=1_000, stream=stream))
    answered = run.statuses.index(400)
    assert 0 < answered < 25 and set(run.statuses[answered:]) == {400}
    assert all(answer.is_whole for answer in run.answers[:answered])
    assert [position for position, *_ in run.failed] == list(range(answered, 25))
    assert len(run.refusals) == 25 - answered
    assert prefix_breaks([seen.body for seen in run.outgoing]) == []
    assert all(sent_with_opening([seen.request for seen in run.outgoing], session))
    assert run.facts_lost([fact.token for fact in session.facts if fact.turn < 24]) == []


async def test_usage_of_a_run_is_the_measure_of_the_session() -> None:
    session, counter = make_session(8, 2), TokenCounter(0.8)
    async with ToyUpstream(bias=0.8) as toy:
        run = await run_session(session, toy.base_url, toy, PLAIN)
    usages = [json.loads(answer.body)["usage"]["prompt_tokens"] for answer in run.answers]
    assert usages == list(simulate(measure(session, counter), 128_000).prompt_tokens)
