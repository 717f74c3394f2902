"""Histories whose old results a client has cleared, and what a request is for."""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.cleared_results import (
    PLACEHOLDERS,
    ResultHashes,
    ResultHashesRecord,
    SplitFingerprint,
    chain_frames,
    find_placeholders,
    find_result_hashes,
    fingerprint_result,
    make_result_hashes,
    rekey,
    with_result_hashes,
)
from gateway.core.history.conversation import begin_conversation
from gateway.core.history.purpose import find_label, is_agent
from tests.decisions.builders import converse, make_pivot

_TALK = converse(
    [
        {"role": "user", "content": "Fix it."},
        {"role": "assistant", "content": "Done. " * 10},
        {"role": "user", "content": "More."},
    ]
)
_OWN = "(gone)"
_CLEARED = find_placeholders(_OWN)
_GONE = fingerprint_result(PLACEHOLDERS[0])
_PLACE = ResultHashesRecord(owner="t", key="ab", covers=2)


def fingerprint(text: str) -> bytes:
    return sha256(text.encode()).digest()


def message(name: str, *results: str) -> SplitFingerprint:
    return SplitFingerprint(fingerprint(name), tuple(map(fingerprint, results)))


def outline(name: str, fingerprints: Sequence[SplitFingerprint]) -> ResultHashes:
    made = make_result_hashes(make_pivot(_TALK, 1, key=fingerprint(name).hex()), name, fingerprints)
    assert made is not None
    return made


def fingerprints() -> st.SearchStrategy[list[SplitFingerprint]]:
    names = st.sampled_from("abc")
    one = st.builds(lambda name, results: message(name, *results), names, st.lists(names, max_size=3))
    return st.lists(one, min_size=1, max_size=6).filter(lambda found: any(one.results for one in found))


def fits(before: Sequence[SplitFingerprint], now: Sequence[SplitFingerprint]) -> bool:
    """Whether a pivot over the first messages would be applied to the others."""
    talk = begin_conversation("t", "chat")
    if chain_frames(talk, before)[-1] != chain_frames(talk, now)[-1]:
        return False
    return (
        find_result_hashes(with_result_hashes(_PLACE, outline("p", before), _CLEARED), now, _CLEARED)
        is not None
    )


@given(fingerprints(), st.data())
def test_a_prefix_is_found_whichever_results_are_cleared(
    before: list[SplitFingerprint], data: st.DataObject
) -> None:
    gone = st.sampled_from([fingerprint_result(text) for text in (*PLACEHOLDERS, _OWN)])
    now = [
        replace(one, results=tuple(data.draw(st.one_of(st.just(result), gone)) for result in one.results))
        for one in before
    ]
    assert fits(before, now)


@given(fingerprints(), st.data())
def test_any_other_change_makes_a_different_prefix(
    before: list[SplitFingerprint], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(before) - 1))
    one = before[at]
    changed = [[replace(one, frame=fingerprint("other"))], [], [one, one]]
    changed += [[replace(one, results=(*one.results, fingerprint("more")))]]
    for which in range(len(one.results)):
        results = list(one.results)
        results[which] = fingerprint("other")
        changed.append([replace(one, results=tuple(results))])
        changed.append([replace(one, results=(*one.results[:which], *one.results[which + 1 :]))])
    now = [*before[:at], *data.draw(st.sampled_from(changed)), *before[at + 1 :]]
    assert not fits(before, now)


@given(fingerprints())
def test_each_tenant_and_format_has_its_own_chain_of_frames(found: list[SplitFingerprint]) -> None:
    talks = [
        begin_conversation(tenant, wire_format)
        for tenant in ("t", "u", "")
        for wire_format in ("chat", "messages", "")
    ]
    links = [link for talk in talks for link in (talk.chain[0], *chain_frames(talk, found))]
    assert len(set(links)) == len(links)


def test_an_ambiguous_prefix_is_not_found() -> None:
    first, second = [message("a", "x", "y")], [message("a", "z", "y")]
    known = with_result_hashes(_PLACE, outline("first", first), _CLEARED)
    known = with_result_hashes(known, outline("second", second), _CLEARED)
    half = [replace(first[0], results=(fingerprint("z"), _GONE))]
    found = find_result_hashes(known, half, _CLEARED)
    assert found is not None and found.conversation == "second"
    assert find_result_hashes(known, [replace(first[0], results=(_GONE, fingerprint("y")))], _CLEARED) is None


def test_a_later_pivot_of_the_same_messages_replaces_the_earlier_one() -> None:
    whole = [message("a", "x", "y")]
    cleared = [replace(whole[0], results=(_GONE, fingerprint("y")))]
    known = with_result_hashes(_PLACE, outline("first", whole), _CLEARED)
    assert with_result_hashes(known, outline("first", whole), _CLEARED) == known
    (kept,) = with_result_hashes(known, outline("second", cleared), _CLEARED).outlines
    assert kept.conversation == "second"


def test_too_many_similar_prefixes_are_all_forgotten() -> None:
    known = _PLACE
    for number in range(4):
        known = with_result_hashes(known, outline(str(number), [message("a", str(number))]), _CLEARED)
    assert len(known.outlines) == 4 and not known.is_crowded
    for number in (4, 5):
        known = with_result_hashes(known, outline(str(number), [message("a", str(number))]), _CLEARED)
        assert known.outlines == () and known.is_crowded


def test_a_rekeyed_pivot_has_the_same_summary_and_saves_no_more_than_is_left() -> None:
    pivot = make_pivot(_TALK, 2, key="ab", saved_tokens=9_000)
    moved = rekey(pivot, _TALK)
    assert moved.key == _TALK.chain[2].hex()
    assert moved == replace(pivot, key=moved.key, saved_tokens=moved.saved_tokens, origin="ab")
    assert 0 < moved.saved_tokens < _TALK.messages[1].size_bytes
    assert rekey(replace(pivot, saved_tokens=3), _TALK).saved_tokens == 3
    assert rekey(replace(pivot, key=moved.key), _TALK).saved_tokens == 9_000


@pytest.mark.parametrize(
    "name", ["x-parent-session-id", "X-Claude-Code-Agent-Id", "x-openai-subagent", "x-codex-parent-thread-id"]
)
def test_a_sub_agent_is_recognized_by_its_header(name: str) -> None:
    assert is_agent(["content-type", name])
    assert not is_agent(["content-type", "x-session-id", "session-id"])


def test_a_session_has_the_name_that_its_client_gives_it() -> None:
    assert find_label([("X-Session-Id", "ses_1"), ("x-gateway-session", "mine")]) == "mine"
    # Sub-agents of Codex send the session of their parent.
    assert find_label([("session-id", "parent"), ("thread-id", "child")]) == "child"
    assert find_label([("user-agent", "x")]) is None
