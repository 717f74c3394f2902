from dataclasses import replace

from gateway.core.history.pivot import Pivot, are_copies
from gateway.core.history.versions import (
    MAX_VERSIONS,
    SummaryVersion,
    VersionsRecord,
    edit_pivot,
    with_version,
)
from tests.builders.chat import make_pivot
from tests.state.talk import talk

_PIVOT = replace(make_pivot(talk(2), 3), summary="As made.", tokens=40, saved_tokens=500, created_seconds=7.0)


def edit(pivot: Pivot, text: str, at_seconds: float = 9.0) -> Pivot:
    return edit_pivot(pivot, text, 10, 12, at_seconds)


def test_an_edit_is_the_next_version_under_the_same_key() -> None:
    edited = edit(_PIVOT, "By a person.")
    assert (edited.key, edited.version, edited.summary) == (_PIVOT.key, 2, "By a person.")
    assert (edited.created_seconds, edited.edited_seconds, edited.is_edited) == (7.0, 9.0, True)
    assert (edited.tokens, edited.saved_tokens) == (50, 488)


def test_a_longer_text_saves_nothing_at_worst() -> None:
    assert edit_pivot(_PIVOT, "x", -90, 9_000, 1.0).saved_tokens == 0
    assert edit_pivot(_PIVOT, "x", -90, 9_000, 1.0).tokens == 0


def test_an_edited_digest_is_a_persons_text() -> None:
    assert not edit(replace(_PIVOT, is_digest=True), "Mine.").is_digest


def test_what_a_pivot_held_is_kept_with_its_time() -> None:
    edited = edit(_PIVOT, "By a person.")
    known = with_version(with_version(VersionsRecord(owner="t", key=_PIVOT.key), _PIVOT), edited)
    assert [(each.version, each.text, each.created_seconds, each.is_edited) for each in known.versions] == [
        (1, "As made.", 7.0, False),
        (2, "By a person.", 9.0, True),
    ]
    found = known.find(1)
    assert isinstance(found, SummaryVersion) and found.saved_tokens == 500
    assert known.find(3) is None


def test_a_version_that_is_kept_twice_is_kept_once() -> None:
    known = VersionsRecord(owner="t", key=_PIVOT.key)
    assert len(with_version(with_version(known, _PIVOT), _PIVOT).versions) == 1


def test_the_oldest_versions_go_first() -> None:
    known, pivot = VersionsRecord(owner="t", key=_PIVOT.key), _PIVOT
    for _ in range(MAX_VERSIONS + 5):
        known, pivot = with_version(known, pivot), edit(pivot, f"{pivot.version}")
    assert [each.version for each in known.versions] == list(range(6, MAX_VERSIONS + 6))


def test_copies_stay_copies_when_one_is_edited() -> None:
    copy = replace(_PIVOT, key="ab", origin=_PIVOT.key)
    assert are_copies(copy, edit(_PIVOT, "By a person."))
    assert are_copies(replace(copy, origin=None), _PIVOT), "of a gateway that did not note the origin"
    assert not are_copies(replace(copy, origin=None), edit(_PIVOT, "Other."))
    assert not are_copies(copy, replace(_PIVOT, owner="u"))
