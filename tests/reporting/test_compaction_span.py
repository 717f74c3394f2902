from gateway.reporting.compaction_log import LogEntry
from gateway.reporting.compaction_span import describe_compaction


def test_a_span_says_what_the_log_says() -> None:
    entry = LogEntry(at_seconds=1, kind="summary", trigger="auto", reason="overflow", pre_tokens=9, calls=1)
    assert describe_compaction("c1", entry, 1) == {
        "gen_ai.operation.name": "compact",
        "gen_ai.conversation.id": "c1",
        "gateway.compaction.trigger": "auto",
        "gateway.compaction.reason": "overflow",
        "gateway.compaction.result": "done",
        "gen_ai.conversation.compacted": True,
        "gateway.compaction.covers": 0,
        "gateway.compaction.calls": 1,
        "gateway.compaction.riding_calls": 1,
        "gateway.compaction.tokens_before": 9,
    }


def test_one_that_failed_compacts_nothing() -> None:
    entry = LogEntry(at_seconds=1, kind="summary", trigger="auto", reason="overflow", outcome="empty")
    said = describe_compaction("c1", entry, 0)
    assert said["error.type"] == "empty" and "gen_ai.conversation.compacted" not in said
