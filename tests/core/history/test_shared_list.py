from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.shared_list import SharedList

items = st.lists(st.integers(), max_size=6)
# Each step goes on from one of those that are there: which, how many of its items stay, what is added.
steps = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), items), max_size=20)


@given(items, steps)
def test_whoever_goes_on_from_whom_each_keeps_the_items_it_had(
    first: list[int], growth: list[tuple[int, int, list[int]]]
) -> None:
    grown, lists = [SharedList(list(first))], [list(first)]
    for which, kept, added in growth:
        at = which % len(grown)
        keep = kept % (len(lists[at]) + 1)
        grown.append(grown[at].grow(keep, added))
        lists.append(lists[at][:keep] + added)
    assert [list(each) for each in grown] == lists


@given(items, items, items)
def test_it_reads_like_a_list_whatever_others_added(
    shown: list[int], added: list[int], other: list[int]
) -> None:
    growing = SharedList(list(shown))
    growing.grow(len(shown), added)
    assert len(growing) == len(shown)
    assert growing == shown and growing == SharedList(shown) and (growing == other) == (shown == other)
    for index in range(-len(shown) - 2, len(shown) + 2):
        if -len(shown) <= index < len(shown):
            assert growing[index] == shown[index]
        else:
            assert _refuses(growing, index)
    for start in (None, *range(-3, len(shown) + 3)):
        for step in (None, 1, 2, -1):
            assert growing[start::step] == shown[start::step]
            assert growing[:start:step] == shown[:start:step]
    assert list(reversed(growing)) == shown[::-1]


def test_it_continues_what_it_was_grown_from_and_nothing_else() -> None:
    root = SharedList([1, 2])
    longer = root.grow(2, [3])
    branch = root.grow(2, [3])
    assert longer.continues(root) and longer.continues(longer)
    assert not root.continues(longer)
    assert not branch.continues(root)
    assert not longer.grow(2, [4]).continues(longer)


def _refuses(growing: SharedList[int], index: int) -> bool:
    try:
        growing[index]
    except IndexError:
        return True
    return False
