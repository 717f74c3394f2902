import json
from typing import Any

import pytest

from gateway.wire.formats.chat.call_tracker import CallTracker, TrackedCall
from gateway.wire.recall import RECALL_TOOL, RecallCall


def track(*pieces: object) -> list[TrackedCall]:
    tracker = CallTracker()
    for piece in pieces:
        tracker.add(piece)
    tracker.place()
    return tracker.calls


def piece(name: str | None = None, arguments: Any = "", **fields: Any) -> dict[str, Any]:
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return {**fields, "function": function}


@pytest.mark.parametrize(
    ("names", "owners"),
    [
        ([RECALL_TOOL], ["gateway"]),
        (["recall", "_history"], ["unknown", "gateway"]),
        (["", "recall_history", "recall_history"], ["unknown", "gateway", "gateway"]),
        (["recall", "er"], ["unknown", "client"]),
        ([None, None], ["unknown", "unknown"]),
        (["read"], ["client"]),
        (["read", "recall_history"], ["client", "client"]),
    ],
)
def test_a_name_may_come_in_pieces(names: list[str | None], owners: list[str]) -> None:
    tracker = CallTracker()
    assert [tracker.add(piece(name, index=0)).owner for name in names] == owners


def test_a_call_of_another_kind_is_the_clients() -> None:
    assert track({"index": 0, "type": "custom", "custom": {"name": RECALL_TOOL}})[0].owner == "client"


@pytest.mark.parametrize(
    ("pieces", "count"),
    [
        ([piece("a", index=0, id="1"), piece(None, "{}", index=0), piece("b", index=1, id="2")], 2),
        # Index 0 for all.
        ([piece("a", "{}", index=0, id="1"), piece("b", "{}", index=0, id="2")], 2),
        # No index.
        ([piece("a", id="1"), piece(None, "{}"), piece("b", id="2"), piece(None, "{}")], 2),
        # Id and name with each piece.
        ([piece("a", "{", index=0, id="1"), piece("a", "}", index=0, id="1")], 1),
        # Another id with each piece, but the name only once.
        ([piece("a", "{", index=0, id="1"), piece(None, "}", index=0, id="2")], 1),
        # Neither index nor id.
        ([piece("a", "{}"), piece("b", "{}")], 2),
        ([piece("a", "{}"), piece("a", "")], 1),
        ([piece("a", '{"x":'), piece("a", "1}")], 1),
        # An id alone says which one.
        ([piece("a", id="1"), piece("b", id="2"), piece(None, "{}", id="1")], 2),
    ],
)
def test_calls_are_kept_apart(pieces: list[dict[str, Any]], count: int) -> None:
    assert len(track(*pieces)) == count


def test_calls_are_counted_without_the_gateways() -> None:
    calls = track(
        *(piece(name, index=at) for at, name in enumerate(["a", RECALL_TOOL, "b", RECALL_TOOL, "c"]))
    )
    assert [(call.at, call.is_moved) for call in calls] == [
        (0, False),
        (1, False),
        (1, True),
        (2, True),
        (2, True),
    ]


@pytest.mark.parametrize(
    ("arguments", "query", "kept"),
    [
        (['{"query":', '"a b"}'], "a b", '{"query":"a b"}'),
        ([{"query": "a"}], "a", '{"query":"a"}'),
        (['{"query":"a'], None, "{}"),
        (['{"query":" "}'], None, '{"query":" "}'),
        (['{"query":7}'], None, '{"query":7}'),
        (["[1]"], None, "{}"),
        ([""], None, "{}"),
        ([None], None, "{}"),
        (['{"query":"\ud83d', '\ude00"}'], "\U0001f600", '{"query":"\U0001f600"}'),
    ],
)
def test_arguments_that_cannot_be_read_are_no_query(
    arguments: list[Any], query: str | None, kept: str
) -> None:
    names = [RECALL_TOOL, None]
    call = track(*(piece(name, each, index=0, id="r") for name, each in zip(names, arguments, strict=False)))[
        0
    ]
    assert call.read_call() == RecallCall("r", query)
    assert json.loads(call.render()) == {
        "id": "r",
        "type": "function",
        "function": {"name": RECALL_TOOL, "arguments": kept},
    }


def test_a_call_that_is_sent_once_more_as_a_whole_is_one() -> None:
    whole = '{"query":"a"}'
    pieces = [piece(RECALL_TOOL, whole[:4], index=0, id="r"), piece(None, whole[4:], index=0)]
    calls = track(*pieces, piece(RECALL_TOOL, whole, index=0, id="r"))
    assert [call.read_call() for call in calls] == [RecallCall("r", "a")]


def test_long_arguments_are_not_parsed_for_each_piece() -> None:
    long = '{"text":"%s"}' % ("x" * 20_000)
    assert len(track(piece("a", long), piece("a", "{}"))) == 1


def test_what_else_the_upstream_says_of_a_call_is_kept() -> None:
    first = piece(RECALL_TOOL, '{"query":"a"}', index=0, id="r", type="function", extra_content={"sign": "s"})
    first["function"]["thought_signature"] = "t"
    call = json.loads(track(first, piece(None, "", index=0, id="", extra_content=None))[0].render())
    assert call["extra_content"] == {"sign": "s"}
    assert call["function"]["thought_signature"] == "t"


def test_a_call_without_an_id_gets_one_of_its_own() -> None:
    tracker = CallTracker()
    for _ in range(2):
        tracker.add_whole(piece(RECALL_TOOL, "{}"))
    tracker.add_whole(piece("a", "{}"))
    tracker.name_calls("c1")
    ids = [call.id for call in tracker.calls]
    assert len({*ids[:2]}) == 2
    assert all(len(name) == len("call_") + 24 for name in ids[:2])
    assert ids[2] == ""
    tracker.name_calls("c2")
    assert [call.id for call in tracker.calls] == ids


def test_a_name_that_never_is_complete_is_the_clients() -> None:
    tracker = CallTracker()
    for name in ("recall", RECALL_TOOL):
        tracker.add_whole(piece(name))
    tracker.close()
    assert [call.owner for call in tracker.calls] == ["client", "gateway"]
    assert tracker.list_own() == tracker.calls[1:]
