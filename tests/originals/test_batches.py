import zlib

from hypothesis import given
from hypothesis import strategies as st

from gateway.originals.archive import make_original
from gateway.originals.batches import Stay, cut_batches, read_kept, read_packed
from gateway.originals.origins import OriginFinder
from gateway.originals.removed import RemovedMessages
from tests.originals.test_archive import talk

_STAY = Stay(1.0, 61.0)


@given(st.lists(st.integers(0, 400_000), max_size=200))
def test_batches_are_bounded_and_hold_everything_in_order(sizes: list[int]) -> None:
    batches = list(cut_batches(sizes, lambda size: size))
    assert [size for batch in batches for size in batch] == sizes
    assert all(batch and len(batch) <= 512 and sum(batch[:-1]) < 512 << 10 for batch in batches)


def test_a_message_reads_the_same_from_a_request_and_from_the_store() -> None:
    received = talk(9).received
    originals = [make_original(received, OriginFinder(received), position) for position in (1, 2, 3)]
    removed = RemovedMessages(
        owner="t", created_seconds=1.0, kind="summary", originals=originals, format="chat", keep_seconds=60
    )
    before = read_kept(received, removed, originals, _STAY)
    assert [(message.position, message.parts[0].text) for message in before] == [
        (1, "I did 0."),
        (2, "And 0?"),
        (3, "I did 1."),
    ]
    packed = {each.digest: zlib.compress(received.raw(each.position)) for each in originals}
    assert read_packed(packed, removed, originals, _STAY) == before
    packed[originals[0].digest] = zlib.compress(received.raw(2))
    packed[originals[1].digest] = b"damaged"
    assert read_packed(packed, removed, originals, _STAY) == before[2:]
