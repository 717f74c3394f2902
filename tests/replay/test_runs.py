"""The sums of requests."""

from gateway.replay.runs import CompactionRun, SummaryCallRun, add_up
from tests.replay.samples import make_run


def test_sizes_changes_and_calls_are_added_up() -> None:
    failed = CompactionRun(when="after", kind="summary", pre_tokens=900, failure="error")
    made = CompactionRun(when="before", kind="summary", pre_tokens=900, covers=4)
    digest = CompactionRun(when="before", kind="digest", pre_tokens=900, covers=4)
    sums = add_up(
        [
            make_run(compactions=(failed, made, digest), calls=(SummaryCallRun("m", 700, 50),), window=900),
            make_run(
                received=3_000,
                sent=500,
                received_cached=1_000,
                sent_cached=100,
                change="compaction",
                window=800,
            ),
            make_run(pruned_messages=7, change="pruning", is_rewritten=True),
        ]
    )
    assert (sums.requests, sums.received, sums.sent) == (3, 5_000, 2_500)
    assert (sums.compactions, sums.digests, sums.failures, sums.prunings) == (1, 1, 1, 1)
    assert (sums.breaks, sums.rewrites) == (2, 1)
    assert (sums.calls, sums.call_prompt, sums.call_output) == (1, 700, 50)
    assert (sums.largest_received, sums.largest_sent, sums.window) == (3_000, 1_000, 800)
    assert (sums.received_reuse, sums.sent_reuse) == (0.2, 0.04)


def test_a_request_beyond_its_own_window_is_counted() -> None:
    assert add_up([make_run(window=999), make_run(window=1_000), make_run()]).too_large == 1


def test_nothing_adds_up_to_nothing() -> None:
    sums = add_up([])
    assert (sums.requests, sums.sent_reuse, sums.received_reuse, sums.window) == (0, 0.0, 0.0, None)
