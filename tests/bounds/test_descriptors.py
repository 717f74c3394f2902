"""Clients never get the last descriptors, and never more than half of them."""

import resource

import pytest

from gateway.bounds.descriptors import count_descriptors, find_fence, find_most_connections, raise_limit


@pytest.mark.parametrize(("descriptors", "most"), [(256, 64), (1_024, 448), (1_048_576, 524_224), (16, 1)])
def test_each_client_leaves_room_for_its_upstream(descriptors: int, most: int) -> None:
    assert find_most_connections(descriptors) == most


@pytest.mark.parametrize("descriptors", [16, 256, 1_024])
def test_some_descriptors_are_kept_from_clients(descriptors: int) -> None:
    assert find_most_connections(descriptors) < find_fence(descriptors) < descriptors


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        assert count_descriptors() == 512
        raise_limit()
        assert count_descriptors() > 512
        raise_limit()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
