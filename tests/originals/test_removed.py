import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.originals.removed import (
    Origin,
    Original,
    RemovedMessages,
    fingerprint,
    parse_removed,
    render_removed,
)

_REMOVED = RemovedMessages(owner="t", created_seconds=1.5, kind="prune", originals=[Original(3, 20, "ab")])


def test_a_list_written_by_the_version_before_is_read() -> None:
    written = b'{"version":1,"owner":"t","created_seconds":1.5,"kind":"prune","originals":[[3,20,"ab"]]}'
    assert parse_removed(written) == _REMOVED


def test_a_rendered_list_is_parsed_back() -> None:
    whole = RemovedMessages(
        owner="t",
        created_seconds=1.5,
        kind="summary",
        originals=[Original(3, 20, "ab", (Origin("read", "a.py"), Origin()))],
        format="chat",
        keep_seconds=60.0,
    )
    assert parse_removed(render_removed(_REMOVED)) == _REMOVED
    assert parse_removed(render_removed(whole)) == whole


@pytest.mark.parametrize(
    ("part", "instead"),
    [(b'"version":1', b'"version":2'), (b'"prune"', b'"other"'), (b"[3,", b'["3",'), (b'"owner"', b'"x"')],
)
def test_a_list_of_another_form_is_none(part: bytes, instead: bytes) -> None:
    whole = render_removed(_REMOVED)
    assert part in whole and parse_removed(whole.replace(part, instead)) is None


@given(st.binary())
def test_parsing_never_raises(data: bytes) -> None:
    assert parse_removed(data) is None


def test_tenants_never_share_a_fingerprint() -> None:
    assert fingerprint("a", b"bc") != fingerprint("ab", b"c")
