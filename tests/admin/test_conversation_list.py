"""Which rows a page of the list has, and what it sums."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.activity.rows import Row, make_row
from gateway.admin.conversation_list import choose_shown, make_cursor, make_page, read_cursor
from gateway.admin.operations import ListQuery
from tests.activity.talk import make_book, make_clock, plan, turn
from tests.builders.rows import row as make

_ROWS = [
    make("c0ffee", 5, tenant="red", model="gpt-4o", session="Parser work"),
    make("beef01", 4, tenant="red", model="claude", purpose="agent", upstream="Anthropic"),
    make("dead02", 3, tenant="blue", model="gpt-4o"),
]


def list_ids(query: ListQuery, rows: list[Row] | None = None) -> list[str]:
    return [row.id for row in make_page(_ROWS if rows is None else rows, query).conversations]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (ListQuery(), ["c0ffee", "beef01", "dead02"]),
        (ListQuery(tenant="red"), ["c0ffee", "beef01"]),
        (ListQuery(tenant="re"), []),
        (ListQuery(model="gpt-4o"), ["c0ffee", "dead02"]),
        (ListQuery(purpose="agent"), ["beef01"]),
        (ListQuery(tenant="red", model="gpt-4o"), ["c0ffee"]),
        (ListQuery(q="EE"), ["c0ffee", "beef01"]),
        (ListQuery(q="parser"), ["c0ffee"]),
        (ListQuery(q="GPT"), ["c0ffee", "dead02"]),
        (ListQuery(q="anthropic"), ["beef01"]),
        (ListQuery(q="blue"), ["dead02"]),
        (ListQuery(q="nothing"), []),
        (ListQuery(limit=2), ["c0ffee", "beef01"]),
    ],
)
def test_rows_are_filtered_and_the_newest_comes_first(query: ListQuery, expected: list[str]) -> None:
    assert list_ids(query) == list_ids(query, _ROWS[::-1]) == expected


@given(
    st.dictionaries(st.text("abcd", min_size=1, max_size=3), st.integers(0, 4), max_size=12),
    st.integers(1, 5),
)
def test_pages_show_each_row_once_in_one_order(found: dict[str, int], limit: int) -> None:
    """Also where many were seen in the same millisecond."""
    rows = [make(*each) for each in found.items()]
    shown, cursor = list[str](), None
    for _ in range(len(rows) + 1):
        page = make_page(rows, ListQuery(limit=limit, cursor=cursor))
        shown += [row.id for row in page.conversations]
        cursor = page.next
        if cursor is None:
            break
    assert shown == list_ids(ListQuery(limit=500), rows)
    assert len(shown) == len(rows)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=12))
def test_rows_that_do_not_change_are_neither_lost_nor_repeated_by_those_that_do(
    changes: list[tuple[int, bool]],
) -> None:
    """Between two pages others are seen again, or are new."""
    rows = {f"still-{at}": make(f"still-{at}", 10 * at) for at in range(10)}
    rows |= {f"busy-{at}": make(f"busy-{at}", 10 * at + 5) for at in range(10)}
    shown, cursor = list[str](), None
    for now, (at, is_new) in enumerate([*changes, *[(0, False)] * 20], 500):
        page = make_page(rows.values(), ListQuery(limit=3, cursor=cursor))
        shown += [row.id for row in page.conversations]
        cursor = page.next
        if cursor is None:
            break
        name = f"new-{now}" if is_new else f"busy-{at}"
        rows[name] = make(name, now)
    still = [name for name in shown if name.startswith("still")]
    assert still == [f"still-{at}" for at in reversed(range(10))]


@given(
    st.lists(st.tuples(st.integers(0, 8), st.sampled_from("ab")), max_size=14),
    st.integers(1, 4),
    st.sampled_from(["", "a"]),
)
def test_what_is_chosen_first_gives_the_same_pages(
    found: list[tuple[int, str]], limit: int, tenant: str
) -> None:
    """found: in half milliseconds, so that several are seen in one."""
    clock = make_clock()
    book = make_book(clock=clock)
    for at, (ticks, name) in enumerate(found):
        clock.now = 1_000 + ticks / 2_000
        book.note_request(turn(f"{at:x}", f"tenant:{name}"), plan(), None)
    query = ListQuery(limit=limit, tenant=tenant or None)
    while True:
        page = make_page(map(make_row, choose_shown(book.list(), query)), query)
        assert page == make_page(map(make_row, book.list()), query)
        if page.next is None:
            break
        query = ListQuery(limit=limit, tenant=tenant or None, cursor=page.next)


def test_no_more_is_chosen_than_the_page_needs() -> None:
    clock = make_clock()
    book = make_book(clock=clock)
    for at in range(40):
        clock.now += 1
        book.note_request(turn(f"{at:x}"), plan(), None)
    assert len(list(choose_shown(book.list(), ListQuery(limit=5)))) == 6


def test_the_last_page_has_no_cursor() -> None:
    assert make_page(_ROWS, ListQuery(limit=3)).next is None
    assert make_page([], ListQuery()).next is None
    assert make_page(_ROWS, ListQuery(limit=2)).next is not None


@given(st.text("0123456789abcdef", min_size=1, max_size=20), st.integers(0, 999))
def test_a_cursor_names_the_place_of_its_row(identity: str, milliseconds: int) -> None:
    row = make(identity, milliseconds)
    assert read_cursor(make_cursor(row)) == (row.last_seen, identity)


@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_what_is_no_cursor_is_a_value_error_or_some_place(text: str) -> None:
    try:
        read_cursor(text)
    except ValueError:
        return


@pytest.mark.parametrize("cursor", ["", "x", "AAAA", "é", "====", "%", "YWJj"])
def test_a_page_behind_what_is_no_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(ValueError):
        make_page(_ROWS, ListQuery(cursor=cursor))
