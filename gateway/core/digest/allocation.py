"""Who gets how much of a room that is too small for all.

Knows needs and weights, not what they are for.
"""

from collections.abc import Sequence


def allocate(needs: Sequence[int], weights: Sequence[int], room: int, least: int) -> list[int]:
    """What each gets, at most its need, together at most the room.

    First come first served until the least of each (or its whole need, if that is less) fits; those after
    that get 0, so a larger room never leaves out what a smaller one held. The rest goes by weight, and what
    one does not need to the others.
    """
    given, left = _give_least(needs, room, least)
    hungry = [at for at, got in enumerate(given) if 0 < got < needs[at]]
    while hungry and left > 0:
        total = sum(weights[at] for at in hungry)
        shares = {at: left * weights[at] // total for at in hungry}
        sated = [at for at in hungry if needs[at] - given[at] <= shares[at]]
        for at in sated or hungry:
            more = min(shares[at], needs[at] - given[at])
            given[at] += more
            left -= more
        hungry = [at for at in hungry if given[at] < needs[at]] if sated else []
    return given


def _give_least(needs: Sequence[int], room: int, least: int) -> tuple[list[int], int]:
    given = [0] * len(needs)
    for at, need in enumerate(needs):
        start = min(need, least)
        if start > room:
            break
        given[at] = start
        room -= start
    return given, room
