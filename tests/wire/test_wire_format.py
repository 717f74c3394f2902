"""Which changes of a conversation change its result hashes. Each pair differs in one place."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.cleared_results import (
    PLACEHOLDERS,
    ResultHashesRecord,
    SplitFingerprint,
    chain_frames,
    find_placeholders,
    find_result_hashes,
    make_result_hashes,
    with_result_hashes,
)
from gateway.wire.canonical import flatten_content
from gateway.wire.wire_format import parse_split_fingerprint
from tests.builders.chat import JSON, conversations, make_pivot, read, render, render_body, render_message

_CLEARED = find_placeholders("")


def read_all(body: bytes, tenant: str = "t") -> tuple[list[bytes], list[SplitFingerprint]]:
    received = read(body, tenant)
    messages = received.conversation.messages
    found = [
        parse_split_fingerprint(received.format, message, received.raw(at))
        for at, message in enumerate(messages)
    ]
    hashes = [hashes for hashes in found if hashes is not None]
    assert len(hashes) == len(found)
    return chain_frames(received.conversation, hashes), hashes


def fits(before: Sequence[JSON], now: Sequence[JSON], tenant: str = "t") -> bool:
    """Would a pivot over all messages before be found again for the messages now?"""
    chain, hashes = read_all(render(before))
    received = read(render(before)).conversation
    outline = make_result_hashes(make_pivot(received, len(hashes)), "c", hashes)
    now_chain, now_hashes = read_all(render(now, 1), tenant)
    if outline is None or now_chain[-1] != chain[-1]:
        return False
    known = ResultHashesRecord(owner="t", key=chain[-1].hex(), covers=len(hashes))
    return find_result_hashes(with_result_hashes(known, outline, _CLEARED), now_hashes, _CLEARED) is not None


def with_results() -> st.SearchStrategy[list[JSON]]:
    return conversations(min_turns=1, max_turns=3).filter(
        lambda found: any(one["role"] == "tool" for one in found)
    )


def text_of(message: JSON) -> str:
    return "".join(flatten_content(message.get("content")).texts)


@given(with_results(), st.data())
def test_a_conversation_is_found_again_whichever_of_its_results_are_cleared(
    messages: list[JSON], data: st.DataObject
) -> None:
    text = data.draw(st.sampled_from(PLACEHOLDERS))
    forms = st.sampled_from([text, [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]])
    now = [
        {**message, "content": data.draw(forms)}
        if message["role"] == "tool" and data.draw(st.booleans())
        else message
        for message in messages
    ]
    assert fits(messages, now)
    assert not fits(messages, now, tenant="u")


def list_changes(message: JSON) -> list[list[JSON]]:
    """Other messages in place of this one; none is this one with a cleared result."""
    text = text_of(message)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,BBBB"}}
    changes: list[list[JSON]] = [
        [],
        [message, message],
        [{**message, "content": f"{text}, changed"}],
        [{**message, "content": [{"type": "text", "text": text}, image]}],
        [{**message, "content": f"{PLACEHOLDERS[0]} "}],
        [{**message, "content": [{"type": "text", "text": PLACEHOLDERS[0]}, image]}],
        [{**message, "x-unknown": 1}],
    ]
    if message["role"] == "tool":
        changes.append([{**message, "tool_call_id": "look:9"}])
    else:
        changes.append([{**message, "content": PLACEHOLDERS[0]}])
    for call in message.get("tool_calls", ())[:1]:
        for function in ({"name": "other"}, {"arguments": "{}"}):
            changed = {**call, "function": {**call["function"], **function}}
            changes.append([{**message, "tool_calls": [changed, *message["tool_calls"][1:]]}])
    return changes


@given(with_results(), st.data())
def test_any_other_change_makes_another_conversation(messages: list[JSON], data: st.DataObject) -> None:
    # The leading block may change: it is not part of the chain.
    leading = len(read(render(messages)).conversation.leading)
    results = [at for at, message in enumerate(messages) if message["role"] == "tool"]
    at = data.draw(st.one_of(st.sampled_from(results), st.integers(leading, len(messages) - 1)))
    for change in list_changes(messages[at]):
        assert not fits(messages, [*messages[:at], *change, *messages[at + 1 :]]), change


_GROUP: list[JSON] = [
    {"role": "user", "content": "Fix it."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "look", "arguments": "[1]"}}],
    },
    {"role": "tool", "tool_call_id": "a", "content": "text"},
    {"role": "user", "content": "More."},
]


@pytest.mark.parametrize("at", range(len(_GROUP)))
def test_no_other_field_may_change_with_a_cleared_result(at: int) -> None:
    cleared = [{**one, "content": PLACEHOLDERS[0]} if one["role"] == "tool" else one for one in _GROUP]
    assert fits(_GROUP, cleared)
    for change in list_changes(cleared[at]):
        assert not fits(_GROUP, [*cleared[:at], *change, *cleared[at + 1 :]]), change


@given(with_results())
def test_the_spelling_of_a_conversation_does_not_matter(messages: list[JSON]) -> None:
    chain, hashes = read_all(render(messages))
    again = render_body([render_message(message, 3) for message in messages], 2)
    assert read_all(again) == (chain, hashes)


def test_a_message_without_results_keeps_its_fingerprint() -> None:
    received = read(render([{"role": "user", "content": "Fix it."}]))
    (message,) = received.conversation.messages
    assert parse_split_fingerprint(received.format, message, received.raw(0)) == SplitFingerprint(
        message.fingerprint
    )


@pytest.mark.parametrize("content", ['"\\ud83d half"', "null", "7", '[{"type":"text","text":"\\ud83d"}]'])
def test_contents_of_odd_types_can_be_split_off(content: str) -> None:
    raw = b'{"role":"tool","tool_call_id":"a","content":%s,"big":12345678901234567890123}' % content.encode()
    plain: dict[str, Any] = {"role": "tool", "tool_call_id": "a", "content": "text"}
    big = json.dumps(plain).encode()[:-1] + b',"big":12345678901234567890123}'
    user = render_message({"role": "user", "content": "Fix it."})
    odd, usual = (read_all(render_body([user, one]))[0] for one in (raw, big))
    assert odd == usual


def test_a_slice_that_cannot_be_split_has_no_result_hashes() -> None:
    received = read(render([{"role": "tool", "tool_call_id": "a", "content": "text"}]))
    (message,) = received.conversation.messages
    assert parse_split_fingerprint(received.format, message, b"[]") is None
