"""Whether originals can be searched."""

from gateway.doctor.search_index import examine_search


def test_this_python_can_search() -> None:
    (found,) = examine_search()
    assert found.level == "ok"


def test_a_sqlite_without_full_text_search_is_named() -> None:
    (found,) = examine_search(lambda: "SQLite 3.8: no such module: fts5")
    assert found.level == "warning" and "no such module: fts5" in found.what and "FTS5" in (found.fix or "")
