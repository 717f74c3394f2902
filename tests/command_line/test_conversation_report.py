"""One conversation for a person."""

from io import StringIO
from typing import Any

import msgspec
from rich.console import Console

from gateway.activity.economics import Economics
from gateway.admin.answers import ConversationPage, RequestRow, SummaryRow
from gateway.command_line.conversation_report import ShownConversation, show_conversation
from gateway.core.compaction.request import CompactionReason
from tests.builders.shown_rows import make_plain_row

PAGE = msgspec.convert(
    msgspec.to_builtins(make_plain_row(session="label"))
    | {
        "messages": 9,
        "growth_tokens": 100,
        "prune_batches": 0,
        "body_in_memory": True,
        "lines": None,
        "texts": {"allowed": False, "reason": "set admin.token"},
    },
    ConversationPage,
)
SUMMARY = SummaryRow(
    key="k",
    kind="summary",
    covers=7,
    trigger="auto",
    reason=CompactionReason.SOFT_THRESHOLD,
    created="2026-11-23T11:00:00+00:00",
    calls=1,
    tokens=900,
    state="in_use",
    in_use=True,
    usd=0.01,
    model="toy-1",
    seconds=1.0,
    prompt_tokens=100,
    output_tokens=10,
    saved_tokens=5_000,
    version=1,
    text=None,
    versions=[],
)


def make_request(**changes: Any) -> RequestRow:
    plain = RequestRow(
        at="2026-11-23T11:00:00+00:00",
        messages=5,
        received=20_000,
        sent=8_000,
        prompt_tokens=8_000,
        cached_tokens=None,
        output_tokens=10,
        plan="pivot",
        soft=10_000,
        hard=12_000,
        change=None,
    )
    return msgspec.structs.replace(plain, **changes)


def show(
    summaries: list[SummaryRow],
    *,
    with_texts: bool,
    requests: list[RequestRow] | None = None,
    page: ConversationPage = PAGE,
) -> str:
    stream = StringIO()
    shown = ShownConversation(conversation=page, requests=requests or [], summaries=summaries)
    show_conversation(Console(file=stream, width=80), shown, with_texts=with_texts)
    return stream.getvalue()


def test_the_newest_requests_are_a_chart_with_what_changed() -> None:
    requests = [make_request(messages=n) for n in range(100, 140)] + [make_request(change="compaction")]
    text = show([], with_texts=False, requests=requests)
    assert "Newest requests: 15 of 3" in text and "pivot ← compaction" in text
    assert " 139 " in text and " 100 " not in text
    assert "████████████░░░│" in text and max(map(len, text.splitlines())) <= 80


def test_a_summary_says_what_it_cost_and_its_text_only_if_wanted() -> None:
    told = msgspec.structs.replace(SUMMARY, text="The task is to [b]write[/b].\nNext: \x1b[2Jtest.")
    assert "summary of 7 messages, in use: soft_threshold" in show([told], with_texts=False)
    assert "The task" not in show([told], with_texts=False)
    assert "; 1 call, $0.0100" in " ".join(show([told], with_texts=False).split())
    riding = msgspec.structs.replace(SUMMARY, calls=2, riding_calls=1)
    assert "; 2 calls, 1 riding, $0.0100" in " ".join(show([riding], with_texts=False).split())
    text = show([told], with_texts=True)
    assert "The task is to [b]write[/b].\nNext: �[2Jtest." in text and "$0.0100" in text


def test_what_it_cost_and_would_have_cost_is_told() -> None:
    economics = Economics(
        prompt_tokens=900, cached_tokens=450, compared_requests=5, with_usd=1, without_usd=2
    )
    page = msgspec.structs.replace(PAGE, economics=economics, died_at=6, cache_breaks=1, compactions=1)
    text = " ".join(show([], with_texts=False, page=page).split())
    assert "1 compaction, 0 prunings" in text and "not sent 12k tokens of all requests" in text
    assert "cached 50% of 900 prompt tokens; 1 break" in text
    assert "+$1.00 saved: $2.00 without the gateway, $1.00 with it, for 5 requests; request 6" in text


def test_a_text_that_may_not_be_shown_says_why() -> None:
    assert "its text is not shown: set admin.token" in show([SUMMARY], with_texts=True)
