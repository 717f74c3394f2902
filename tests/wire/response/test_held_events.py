"""What waits behind the end of a response, and its bound."""

from gateway.wire.response.held_events import MAX_HELD_BYTES, HeldEvents


def test_events_are_held_up_to_a_bound() -> None:
    held = HeldEvents[str]()
    begun = [held.has_begun]
    assert held.hold("end", MAX_HELD_BYTES)
    held.append("rest")
    held.prepend(iter(["first", "second"]))
    assert list(held) == ["first", "second", "end", "rest"]
    assert not held.hold("more", 1)
    held.clear()
    begun.append(held.has_begun)
    assert begun == [False, True] and list(held) == []
    assert not held.hold("later", 1)
