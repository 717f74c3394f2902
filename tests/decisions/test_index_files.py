"""The file of the index over originals: what is searched, what leaves it, and who finds nothing in it."""

import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.search.terms import find_terms
from gateway.originals.index import (
    IndexBatch,
    IndexedMessage,
    add_batch,
    drop_expired,
    drop_owned,
    find_pieces,
    let_words_go,
    list_mentions,
    list_whole,
    open_index,
)
from gateway.originals.parts import Part


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    path = tmp_path / "index"
    path.touch()
    return path


def add(
    path: Path,
    text: str,
    list_name: str = "c/1",
    *,
    tag: str = "aa",
    position: int = 1,
    number: int = 0,
    of: int = 1,
    expires: float = 100.0,
) -> None:
    messages = [IndexedMessage(position, [Part(0, "user", "read", "a.py", text, ("a.py",))])]
    with closing(open_index(path)) as index:
        add_batch(index, IndexBatch(tag, list_name, number, of, expires, messages))


def find(path: Path, query: str, list_names: Sequence[str] = ("c/1",), tag: str = "aa") -> list[str]:
    with closing(open_index(path)) as index:
        return [row.text for row in find_pieces(index, tag, list_names, find_terms(query))]


def test_a_list_is_whole_with_its_last_batch(path: Path) -> None:
    add(path, "alpha", number=0, of=2)
    with closing(open_index(path)) as index:
        assert list_whole(index, "aa", ["c/1", "c/2"]) == set()
    for _ in range(2):
        add(path, "beta", number=1, of=2)
    assert find(path, "beta") == ["beta"]
    with closing(open_index(path)) as index:
        assert list_whole(index, "aa", ["c/1", "c/2"]) == {"c/1"}
        assert list_whole(index, "bb", ["c/1"]) == set()


def test_only_the_lists_that_are_named_are_seen(path: Path) -> None:
    add(path, "one canary", "c/1")
    add(path, "other canary", "c/2", position=2)
    add(path, "foreign canary", "c/1", tag="bb")
    assert find(path, "canary", ["c/1"]) == ["one canary"]
    assert sorted(find(path, "canary", ["c/1", "c/2"])) == ["one canary", "other canary"]
    assert find(path, "canary", ["c/3"]) == find(path, "canary", [], "aa") == []
    assert find(path, "canary", ["c/1"], "bb") == ["foreign canary"]
    with closing(open_index(path)) as index:
        assert [(each.path, each.positions) for each in list_mentions(index, "aa", ["c/1"], 5)] == [
            ("a.py", [1])
        ]
        assert list_mentions(index, "cc", ["c/1"], 5) == []


def test_of_many_lists_of_a_conversation_only_those_that_are_named_are_seen(path: Path) -> None:
    with closing(open_index(path)) as index:
        index.execute("PRAGMA synchronous=OFF")
        for tag in ("aa", "bb"):
            for number in range(120):
                parts = [Part(0, "user", None, None, f"canary {tag} {number}")]
                batch = IndexBatch(tag, f"c/{number}", 0, 1, 100.0, [IndexedMessage(number, parts)])
                add_batch(index, batch)
    add(path, "canary beside", "d/1")
    names = [f"c/{number}" for number in range(0, 120, 2)]
    assert sorted(find(path, "canary", names)) == sorted(f"canary aa {number}" for number in range(0, 120, 2))
    assert "canary beside" in find(path, "canary beside", [*names, "d/1"])
    assert find(path, "119", names) == find(path, "canary", names, "cc") == []


def test_a_query_ends_with_its_time(path: Path) -> None:
    add(path, "canary")
    with closing(open_index(path)) as index, pytest.raises(TimeoutError):
        find_pieces(index, "aa", ["c/1"], find_terms("canary"), -1.0)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from(["canary", "hound", "scope", "r0", "日本語"]), min_size=1, max_size=6),
    st.text(max_size=20),
)
def test_no_query_finds_what_is_another_tenants_and_others_texts_change_no_ranking(
    words: list[str], query: str
) -> None:
    asked, ranked = f"{' '.join(words)} {query}".encode("utf-8", "replace").decode(), []
    for others in (0, 40):
        with tempfile.NamedTemporaryFile() as file, closing(open_index(Path(file.name))) as index:
            index.execute("PRAGMA synchronous=OFF")
            texts = [("bb", f"c/{number}", f"{' '.join(words)} theirs {number}") for number in range(others)]
            texts += [("aa", f"c/{at}", f"{word} {at} " * (at + 1)) for at, word in enumerate(words)]
            for tag, name, text in texts:
                message = IndexedMessage(1, [Part(0, "user", None, None, text)])
                add_batch(index, IndexBatch(tag, name, 0, 1, 100.0, [message]))
            names = [f"c/{at}" for at in range(len(words))]
            rows = find_pieces(index, "aa", names, find_terms(asked))
            assert rows and not any("theirs" in row.text for row in rows)
            ranked.append([row.text for row in rows])
    assert ranked[0] == ranked[1]


def test_what_expires_leaves_the_file(path: Path) -> None:
    add(path, "kanarienvogel alpha", "c/1", expires=50.0)
    add(path, "nachtigall alpha", "c/2", position=2, expires=90.0)
    assert b"kanarienvogel" in path.read_bytes()
    with closing(open_index(path)) as index:
        drop_expired(index, 60.0)
        while let_words_go(index):
            pass
    data = path.read_bytes()
    assert b"kanarienvogel" not in data and b"kanarie" not in data
    assert find(path, "alpha", ["c/1", "c/2"]) == ["nachtigall alpha"]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(("conversation", "left"), [("c", ["cc/1"]), (None, [])])
def test_what_is_deleted_leaves_the_file_and_others_stay(
    path: Path, conversation: str | None, left: list[str]
) -> None:
    for number in range(40):
        add(path, f"kanarienvogel{number} " * 50, f"c/{number}")
    add(path, "nachtigall", "cc/1")
    add(path, "nachtigall", "c/1", tag="bb")
    size = path.stat().st_size
    with closing(open_index(path)) as index:
        drop_owned(index, "aa", conversation)
        assert list_whole(index, "aa", ["c/1", "cc/1"]) == set(left)
        while let_words_go(index):
            pass
    data = path.read_bytes()
    assert b"kanarie" not in data and len(data) < size
    assert find(path, "nachtigall", ["c/1"], "bb") == ["nachtigall"]
    assert find(path, "nachtigall", ["cc/1"]) == ["nachtigall"] * len(left)


def test_words_of_what_has_expired_wait_for_more_or_for_a_deletion(path: Path) -> None:
    add(path, "kanarienvogel", "c/1", expires=50.0)
    for number in range(20):
        add(path, f"nachtigall {number}", f"d/{number}")
    with closing(open_index(path)) as index:
        drop_expired(index, 60.0)
        assert not let_words_go(index)
    assert find(path, "kanarienvogel") == [] and b"kanarie" in path.read_bytes()
    with closing(open_index(path)) as index:
        drop_owned(index, "aa", "c")
        assert let_words_go(index)
    # Another process goes on with it.
    with closing(open_index(path)) as index:
        while let_words_go(index):
            pass
    assert b"kanarie" not in path.read_bytes()
    assert len(find(path, "nachtigall", [f"d/{number}" for number in range(20)])) == 20
