"""Divides a room that is too small for everything. Knows needs and weights only."""

from collections.abc import Sequence


def allocate(needs: Sequence[int], weights: Sequence[int], room: int, minimum: int) -> list[int]:
    """The share of each need: at most the need itself, together at most the room.

    In order, each first gets the minimum (or its whole need if that is less), until the room is used up; the
    others get 0. So a larger room never leaves out what a smaller one included. The rest is divided by
    weight, and what one share does not need goes to the others.
    """
    shares, left = _allocate_minimum(needs, room, minimum)
    unsatisfied = [at for at, share in enumerate(shares) if 0 < share < needs[at]]
    while unsatisfied and left > 0:
        total = sum(weights[at] for at in unsatisfied)
        offers = {at: left * weights[at] // total for at in unsatisfied}
        satisfied = [at for at in unsatisfied if needs[at] - shares[at] <= offers[at]]
        for at in satisfied or unsatisfied:
            more = min(offers[at], needs[at] - shares[at])
            shares[at] += more
            left -= more
        unsatisfied = [at for at in unsatisfied if shares[at] < needs[at]] if satisfied else []
    return shares


def _allocate_minimum(needs: Sequence[int], room: int, minimum: int) -> tuple[list[int], int]:
    """The first shares, and the room that is left."""
    shares = [0] * len(needs)
    for at, need in enumerate(needs):
        share = min(need, minimum)
        if share > room:
            break
        shares[at] = share
        room -= share
    return shares, room
