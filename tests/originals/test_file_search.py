from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.core.search.terms import find_terms
from gateway.originals.file_search import (
    FoundRow,
    Sought,
    find_pieces,
    list_mentions,
    make_bound,
    read_message,
)
from gateway.originals.index_file import IndexedMessage, add_messages, open_index
from gateway.originals.parts import Part

_TEXTS = [
    "Please fix the login page, it shows Error 4711 to customers.",
    "I look at gateway/core/search/terms.py and at foo_bar_baz.",
    "commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b by somebody",
    "class HTTPResponseReader: def readChunkedBody(self)",
    "错误处理代码在这个文件里。日本語のテキストもある。",
    "Deployed 🚀 to production",
    "Das Maß der Straße über Ägypten",
    "x" * 5_000 + "needle" + "y" * 5_000,
]


@pytest.fixture(name="place", scope="module")
def _place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("search") / "i"
    messages = [
        IndexedMessage(at, f"d{at}", 5.0, 100.0, [Part(0, "user", None, None, text, (f"f{at % 3}.py",))])
        for at, text in enumerate(_TEXTS)
    ]
    fillers = [
        IndexedMessage(
            at, f"d{at}", 5.0, 100.0, [Part(0, "tool", None, None, f"some other line of text {at}")]
        )
        for at in range(100, 300)
    ]
    with open_index(path) as index:
        add_messages(index, [*messages, *fillers])
    return path


def find(path: Path, query: str, before: int | None = None, now: float = 10.0) -> list[FoundRow]:
    with open_index(path) as index:
        return find_pieces(index, make_bound(before, now), Sought(find_terms(query)), 10)


@pytest.mark.parametrize(
    ("query", "position"),
    [
        ("what did the user say about the login page?", 0),
        ("4711", 0),
        ("gateway/core/search/terms.py", 1),
        ("search/terms", 1),
        ("terms.py", 1),
        ("foo_bar_baz", 1),
        ("bar_baz", 1),
        ("9f86d08", 2),
        ("HTTPResponseReader", 3),
        ("response reader", 3),
        ("chunked", 3),
        ("ResponseRead", 3),
        ("错误处理", 4),
        ("错误", 4),
        ("代码在哪个文件", 4),
        ("日本語", 4),
        ("🚀", 5),
        ("strasse agypten", 6),
        ("ägypten", 6),
        ("needle", 7),
    ],
)
def test_the_message_is_found_first(place: Path, query: str, position: int) -> None:
    assert find(place, query)[0].position == position


@pytest.mark.parametrize("query", ["zebra", "qqqq", "错字"])
def test_what_no_message_says_is_not_found(place: Path, query: str) -> None:
    assert find(place, query) == []


@pytest.mark.parametrize(
    "query",
    ['"login', "login NOT page", "NEAR(login page)", "text:login", "login*", "^login", "login AND", "(login"],
)
def test_the_syntax_of_the_database_is_only_text(place: Path, query: str) -> None:
    assert find(place, query)[0].position == 0


def test_only_messages_before_a_position_are_found(place: Path) -> None:
    assert {row.position for row in find(place, "some other line of text", before=110)} == {*range(100, 110)}
    assert find(place, "needle", before=7) == []
    assert find(place, "needle", before=8) != []
    assert find(place, "eedl", before=7) == []


def test_what_has_expired_is_not_found(place: Path) -> None:
    assert find(place, "needle login", now=100.0) == []


def test_a_common_word_ranks_the_newest_pieces(tmp_path: Path) -> None:
    path = tmp_path / "i"

    def make() -> Iterator[IndexedMessage]:
        for at in range(9_000):
            yield IndexedMessage(at, f"d{at}", 5.0, 100.0, [Part(0, "tool", None, None, f"alpha n{at}")])

    with open_index(path) as index:
        add_messages(index, list(make()))
    found = find(path, "alpha")
    assert len(found) == 10 and min(row.position for row in found) > 4_000
    assert find(path, "alpha n17")[0].position == 17


def test_a_message_is_read_whole(place: Path) -> None:
    with open_index(place) as index:
        found = read_message(index, "c", 7, make_bound(None, 10.0))
        assert found is not None and found.text == _TEXTS[7] and found.total_chars == len(_TEXTS[7])
        assert read_message(index, "c", 7, make_bound(7, 10.0)) is None
        assert read_message(index, "c", 7, make_bound(None, 100.0)) is None
        assert read_message(index, "c", 50, make_bound(None, 10.0)) is None


def test_files_are_listed_with_the_newest_mention_first(place: Path) -> None:
    with open_index(place) as index:
        files = list_mentions(index, make_bound(None, 10.0), 2)
        assert [(file.path, file.mentions, file.positions) for file in files] == [
            ("f1.py", 3, [1, 4, 7]),
            ("f0.py", 3, [0, 3, 6]),
        ]
        assert [file.positions for file in list_mentions(index, make_bound(2, 10.0), 5)] == [[1], [0]]
        assert list_mentions(index, make_bound(None, 100.0), 5) == []
