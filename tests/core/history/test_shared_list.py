from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.shared_list import SharedList

items = st.lists(st.integers(), max_size=6)
# Each step grows one of the existing lists: its number, how many of its items are kept, what is added.
steps = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), items), max_size=20)


@given(items, steps)
def test_every_list_keeps_its_items_when_others_are_grown_from_it(
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
def test_it_reads_like_a_list_after_others_were_grown_from_it(
    shown: list[int], added: list[int], other: list[int]
) -> None:
    shared = SharedList(list(shown))
    shared.grow(len(shown), added)
    assert len(shared) == len(shown)
    assert shared == shown and shared == SharedList(shown) and (shared == other) == (shown == other)
    for index in range(-len(shown) - 2, len(shown) + 2):
        if -len(shown) <= index < len(shown):
            assert shared[index] == shown[index]
        else:
            assert _refuses(shared, index)
    for start in (None, *range(-3, len(shown) + 3)):
        for step in (None, 1, 2, -1):
            assert shared[start::step] == shown[start::step]
            assert shared[:start:step] == shown[:start:step]
    assert list(reversed(shared)) == shown[::-1]


def test_it_reads_backwards_while_another_thread_extends_the_list() -> None:
    class Extended(list[int]):
        """Grows just when it is about to be read backwards."""

        def __reversed__(self) -> Iterator[int]:
            backwards = super().__reversed__()
            self.append(0)
            return backwards

    assert list(reversed(SharedList(Extended([1, 2, 3])))) == [3, 2, 1]


def test_it_continues_only_the_list_it_was_grown_from() -> None:
    root = SharedList([1, 2])
    longer = root.grow(2, [3])
    branch = root.grow(2, [3])
    assert longer.continues(root) and longer.continues(longer)
    assert not root.continues(longer)
    assert not branch.continues(root)
    assert not longer.grow(2, [4]).continues(longer)


def _refuses(shared: SharedList[int], index: int) -> bool:
    try:
        shared[index]
    except IndexError:
        return True
    return False
