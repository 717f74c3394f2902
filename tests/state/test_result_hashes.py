"""Hashes of results that were cleared are found by the first key that has any."""

from gateway.core.history.cleared_results import ResultHashes, ResultHashesRecord
from tests.builders.state import make_state, make_store


async def test_the_hashes_of_the_first_key_that_has_any_are_found_by_their_owner() -> None:
    store = await make_store()
    hashes = ResultHashesRecord(
        owner="t", key="cd", covers=3, outlines=(ResultHashes(pivot="ef", conversation="c", results="01"),)
    )
    make_state(store).result_hashes.save(hashes)
    there = make_state(store).result_hashes
    assert await there.load("t", ["ab", "cd"]) == hashes
    assert await there.load("t", ["ab"]) is None
    assert await there.load("t", []) is None
    assert await there.load("u", ["cd"]) is None
