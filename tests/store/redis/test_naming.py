"""Names of keys on the server: prefix, version, and everything of a tenant in one slot."""

import pytest

from gateway.store.redis.address import parse_address
from gateway.store.redis.naming import Listed, make_naming
from tests.store.redis.servers import TAG, key

NAMING = make_naming(parse_address("redis://h/3"))


def find_slot_text(name: str) -> str:
    """What Redis hashes: the text in the first braces."""
    return name.partition("{")[2].partition("}")[0]


def test_every_name_of_a_tenant_lies_in_one_slot() -> None:
    listed = NAMING.find_list(key("taken", "conversation:1"))
    assert listed is not None
    names = [NAMING.name(key("head", "00")), listed.list_name, NAMING.make_fence(key("lease", "00"))]
    assert {find_slot_text(name) for name in names} == {TAG}
    assert all(name.startswith("gateway1:") for name in names)


def test_a_prefix_and_a_bounded_store_keep_records_apart() -> None:
    address = parse_address("redis://h?prefix=team")
    names = {
        naming.name("head:1") for naming in (NAMING, make_naming(address), make_naming(address, "named"))
    }
    assert names == {"gateway1:head:1", "team1:head:1", "team1:named/head:1"}
    assert make_naming(address, "named").find_key("team1:named/head:1") == "head:1"


def test_databases_have_channels_of_their_own() -> None:
    assert NAMING.channel != make_naming(parse_address("redis://h/4")).channel


def test_a_name_of_two_parts_is_in_the_list_of_its_first_part() -> None:
    prefix = key("taken", "conversation:")
    assert NAMING.find_list(prefix + "7") == Listed(f"gateway1:list/{prefix}", "7")
    assert NAMING.find_list_of(prefix) == f"gateway1:list/{prefix}"
    assert NAMING.find_list(prefix + "7:8") == Listed(f"gateway1:list/{prefix}", "7:8")


@pytest.mark.parametrize("plain", [key("head", "00"), "head:1:2", "head:{short}1:2"])
def test_other_records_are_in_no_list(plain: str) -> None:
    assert NAMING.find_list(plain) is None


@pytest.mark.parametrize("prefix", ["", "head:", key("taken", ""), key("taken", "a"), key("taken", "a:b")])
def test_no_other_prefix_is_a_list(prefix: str) -> None:
    assert NAMING.find_list_of(prefix) is None


def test_only_records_count_as_records() -> None:
    listed = NAMING.find_list(key("taken", "c:1"))
    assert listed is not None
    others = [listed.list_name, NAMING.name(key("lease", "0")), NAMING.make_fence(key("lease", "0"))]
    assert [NAMING.is_record(name) for name in others] == [False, False, False]
    assert NAMING.is_record(NAMING.name(key("head", "0")))
    bounded = make_naming(parse_address("redis://h"), "originals")
    assert NAMING.is_record(bounded.name(key("original", "0")))
    assert not NAMING.is_record(f"gateway1:originals/list/{key('taken', 'c:')}")
