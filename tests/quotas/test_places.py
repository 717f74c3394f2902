"""Places that are held until they are given back, or until their time is over."""

from gateway.quotas.places import LocalPlaces
from tests.store.clock import Clock


async def test_no_more_places_are_held_than_there_are() -> None:
    places = LocalPlaces()
    assert [await places.take("k", member, 2) for member in "abc"] == [True, True, False]
    assert places.members == {"k": ["a", "b"]}


async def test_a_place_that_is_given_back_is_free() -> None:
    places = LocalPlaces()
    await places.take("k", "a", 1)
    await places.give_back({"k": ["a", "never taken"], "other": ["b"]})
    assert await places.take("k", "b", 1)


async def test_keys_have_places_of_their_own() -> None:
    places = LocalPlaces()
    assert [await places.take(key, key, 1) for key in "ab"] == [True, True]


async def test_a_place_that_is_not_renewed_is_free_after_its_time() -> None:
    clock = Clock()
    places = LocalPlaces(15.0, clock)
    await places.take("k", "a", 1)
    clock.now += 14.9
    assert not await places.take("k", "b", 1)
    clock.now += 0.1
    assert await places.take("k", "b", 1)


async def test_a_place_that_is_renewed_stays_held() -> None:
    clock = Clock()
    places = LocalPlaces(15.0, clock)
    await places.take("k", "a", 1)
    for _ in range(4):
        clock.now += 5.0
        await places.renew({"k": ["a"]})
    assert not await places.take("k", "b", 1)


async def test_a_place_that_was_lost_is_held_again_whether_there_is_room_or_not() -> None:
    places = LocalPlaces(15.0, Clock())
    await places.take("k", "a", 1)
    await places.renew({"k": ["b", "c"]})
    assert places.members == {"k": ["a", "b", "c"]}


async def test_without_a_time_a_place_is_held_for_ever() -> None:
    clock = Clock()
    places = LocalPlaces(clock=clock)
    await places.take("k", "a", 1)
    clock.now += 1e9
    assert not await places.take("k", "b", 1)
