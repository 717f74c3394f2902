from dataclasses import replace

from pydantic import SecretStr

from gateway.core.limits.model_limits import Limits
from gateway.limits.model_lists import ModelLists, choose_viewer
from gateway.settings import load_settings

SMALL, LARGE = {"m": Limits(context=4_096)}, {"m": Limits(context=8_192)}


def test_a_list_is_not_shown_to_another_viewer() -> None:
    lists = ModelLists()
    lists.keep("a", "up", SMALL)
    lists.keep("b", "up", LARGE)
    assert lists.find("a", "up", "m") == Limits(context=4_096)
    assert lists.find("b", "up", "m") == Limits(context=8_192)
    assert lists.find("a", "other", "m") is None
    assert lists.find("c", "up", "m") is None
    assert lists.find("a", "up", "n") is None


def test_an_empty_list_counts_as_a_response() -> None:
    lists = ModelLists()
    assert not lists.has("a", "up")
    lists.keep("a", "up", {})
    assert lists.has("a", "up")


def test_a_newer_list_replaces_the_older_one_for_its_viewer_only() -> None:
    lists = ModelLists()
    assert lists.keep("a", "up", SMALL)
    assert not lists.keep("b", "up", dict(SMALL))
    assert lists.keep("a", "up", LARGE)
    assert lists.find("a", "up", "m") == Limits(context=8_192)
    assert lists.find("b", "up", "m") == Limits(context=4_096)


def test_many_viewers_of_one_list_cost_the_memory_of_one() -> None:
    lists = ModelLists()
    listed = {f"vendor/model-{number}": Limits(context=4_096) for number in range(400)}
    for viewer in range(1_000):
        lists.keep(f"key:{viewer}", "up", dict(listed))
    assert all(lists.find(f"key:{viewer}", "up", "vendor/model-7") for viewer in range(1_000))


def test_lists_are_bounded_and_the_least_recently_used_are_dropped_first() -> None:
    lists = ModelLists()
    for viewer in range(100):
        # A list of its own for each: some 700 KB.
        listed = {f"m-{number}": Limits(context=1_000 + viewer) for number in range(2_000)}
        lists.keep(f"key:{viewer}", "up", listed)
    held = [viewer for viewer in range(100) if lists.find(f"key:{viewer}", "up", "m-0")]
    assert held == list(range(100 - len(held), 100))
    assert 5 <= len(held) <= 15


def test_with_its_own_key_an_upstream_shows_one_list_to_all() -> None:
    forwarding = load_settings(None, {}).upstreams["default"]
    with_key = replace(forwarding, api_key=SecretStr("k"))
    assert choose_viewer(forwarding, "a") != choose_viewer(forwarding, "b")
    assert choose_viewer(with_key, "a") == choose_viewer(with_key, "b")


def test_lists_of_upstreams_that_have_not_changed_are_taken_over() -> None:
    lists = ModelLists()
    lists.keep("a", "up", SMALL)
    lists.keep("a", "other", LARGE)
    taken = lists.of_upstreams({"up"})
    assert taken.find("a", "up", "m") == Limits(context=4_096)
    assert not taken.has("a", "other")
