from gateway.state.chain_places import ChainPlace, ChainPlaces
from tests.state.talk import talk


def place(turns: int, length: int) -> ChainPlace:
    return ChainPlace(talk(turns).chain[length].hex(), length)


def test_places_on_the_chain_of_a_conversation_are_found_in_their_order() -> None:
    places = ChainPlaces()
    late, early = place(3, 5), place(3, 3)
    for each in (late, early, ChainPlace("ab" * 32, 2)):
        places.add("tag", each)
    assert places.find("tag", talk(5)) == [early, late]
    assert places.find("tag", talk(1)) == [early]
    assert places.find("other", talk(5)) == []


def test_of_more_places_than_messages_those_on_the_chain_are_found_as_well() -> None:
    places = ChainPlaces()
    for number in range(100):
        places.add("tag", ChainPlace(f"{number:064x}", 1))
    places.add("tag", place(2, 3))
    assert places.find("tag", talk(2)) == [place(2, 3)]


def test_a_place_that_was_dropped_or_forgotten_is_not_found() -> None:
    places = ChainPlaces()
    first, second = place(3, 3), place(3, 5)
    for tag in ("one", "two"):
        places.add(tag, first)
        places.add(tag, second)
    places.drop("one", first.key)
    places.drop("one", first.key)
    places.forget("two")
    assert places.find("one", talk(3)) == [second]
    assert places.find("two", talk(3)) == []


def test_places_are_bounded_and_the_first_ones_are_forgotten() -> None:
    places = ChainPlaces()
    places.add("tag", place(3, 3))
    for number in range(10_000):
        places.add("tag", ChainPlace(f"{number:064x}", 1))
    assert places.find("tag", talk(3)) == []
