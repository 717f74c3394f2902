"""Calls and replies survive the way between two processes."""

import msgspec
import pytest

from gateway.store.served.calls import (
    AnnounceCall,
    ClaimCall,
    DurableCall,
    HeldReply,
    NewsReply,
    ReadCall,
    RecordsReply,
    StoreCall,
    StoreReply,
    ValueReply,
    WriteCall,
    parse_calls,
    parse_replies,
    render_messages,
)


def test_what_is_rendered_is_parsed() -> None:
    calls: list[StoreCall] = [
        ReadCall(1, "main", [["head:a", "head:b"], []]),
        WriteCall("named", "turn:a", b"\x00\xff", 60.0),
        DurableCall(2, "originals", "taken:a", b"", 1.5, True),
        ClaimCall(3, "lease:a", ["lease:b"], 6.0),
        AnnounceCall("tag", "pivot a"),
    ]
    assert parse_calls(render_messages(calls)) == calls
    replies: list[StoreReply] = [
        RecordsReply(1, [("head:b", b"1"), None]),
        ValueReply(2, None),
        HeldReply(3, "lease:b", 7, 2.5),
        NewsReply("tag", "pivot a"),
    ]
    parsed = parse_replies(render_messages(replies))
    assert render_messages(parsed) == render_messages(replies)


def test_a_reply_is_no_call() -> None:
    with pytest.raises(msgspec.MsgspecError):
        parse_calls(render_messages([ValueReply(2, None)]))
    with pytest.raises(msgspec.MsgspecError):
        parse_replies(b"\xc1")
