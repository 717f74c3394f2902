"""When a session would be compacted and pruned."""

from gateway.replay.runs import CompactionRun
from gateway.replay.timeline import list_events
from tests.replay.samples import make_run


def test_each_event_names_its_request_and_what_it_brings() -> None:
    background = CompactionRun(when="after", kind="summary", pre_tokens=9_000, covers=12)
    awaited = CompactionRun(when="before", kind="digest", pre_tokens=9_900, covers=30)
    failed = CompactionRun(when="before", kind="summary", pre_tokens=9_950, failure="paused")
    lines = [
        *list_events(
            [
                make_run(compactions=(background,)),
                make_run(),
                make_run(covers=12, sent=2_000, change="compaction"),
                make_run(compactions=(awaited,), covers=30, sent=3_000),
                make_run(pruned_messages=4),
                make_run(change="history"),
                make_run(compactions=(failed,)),
            ]
        )
    ]
    assert lines == [
        "    1  summary of 12 messages, 9.00K to 2.00K tokens, in the background",
        "    4  digest of 30 messages, 9.90K to 3.00K tokens, the request waits",
        "    5  4 messages pruned",
        "    6  the client changes its history",
        "    7  no summary, the request waits: paused",
    ]


def test_a_summary_that_no_request_used_says_so() -> None:
    made = CompactionRun(when="after", kind="summary", pre_tokens=9_000, covers=12)
    assert [*list_events([make_run(compactions=(made,))])] == [
        "    1  summary of 12 messages, 9.00K to not used yet, in the background"
    ]
