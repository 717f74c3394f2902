"""Where a store is: its URL, what it may say, and that no text shows the password."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.store.address import make_store
from gateway.store.interface import StoreRefused
from gateway.store.redis_address import Address, is_redis, parse_address


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://cache", Address(host="cache")),
        ("redis://cache/", Address(host="cache")),
        ("redis://cache:7000/3", Address(host="cache", port=7000, database=3)),
        ("redis://[::1]:7000", Address(host="::1", port=7000)),
        ("redis://:pw@10.0.0.1/2", Address(host="10.0.0.1", database=2, password="pw")),
        ("redis://me:pw@h", Address(host="h", user="me", password="pw")),
        ("redis://me:p%40w%2F@h", Address(host="h", user="me", password="p@w/")),
        ("redis://:p@ss/w#rd?x@h:1/0", Address(host="h", port=1, password="p@ss/w#rd?x")),
        ("redis://h?prefix=team-a&timeout_ms=80", Address(host="h", prefix="team-a", timeout_ms=80)),
        (
            "rediss://h/0?ca_file=/etc/ca.pem&certificate_file=/c&key_file=/k",
            Address(
                host="h",
                uses_tls=True,
                ca_file=Path("/etc/ca.pem"),
                certificate_file=Path("/c"),
                key_file=Path("/k"),
            ),
        ),
    ],
)
def test_an_address_says_where_and_how(url: str, expected: Address) -> None:
    assert is_redis(url) and parse_address(url) == expected


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://", "must be redis://"),
        ("redis://:hunter2@", "must be redis://"),
        ("redis://h:99999", "port that does not exist"),
        ("redis://h:0", "port that does not exist"),
        ("redis://h/zero", "must be redis://"),
        ("redis://h name", "must be redis://"),
        ("redis://hunter2@h", "password before the @"),
        ("redis://h?prefx=a", "nearest valid one is 'prefix'"),
        ("redis://h?tls=hunter2", "nearest valid one is"),
        ("redis://h?prefix=a&prefix=b", "one value of the parameter 'prefix'"),
        ("redis://h?prefix=", "one value of the parameter 'prefix'"),
        ("redis://h?prefix={hunter2}", "letters, digits"),
        ("redis://h?timeout_ms=1", "from 5 to 60000"),
        ("redis://h?timeout_ms=hunter2", "from 5 to 60000"),
        ("redis://h?ca_file=/ca.pem", "must be rediss:// to use ca_file"),
        ("rediss://h?certificate_file=/c.pem", "both of certificate_file and key_file"),
    ],
)
def test_a_wrong_address_is_refused_in_words_without_its_secrets(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        parse_address(url)
    assert "hunter2" not in str(refusal.value)


@given(password=st.text(st.characters(codec="ascii", exclude_characters="%"), min_size=1))
def test_the_password_is_taken_as_it_is_and_shown_nowhere(password: str) -> None:
    address = parse_address(f"redis://user:{password}@host:6380/1")
    assert (address.host, address.port, address.password) == ("host", 6380, password)
    shown = repr(address) + address.shown
    assert repr(parse_address("redis://user:other@host:6380/1")) + address.shown == shown


def test_an_address_is_shown_without_its_login() -> None:
    assert parse_address("rediss://me:pw@[::1]:7/2?prefix=x").shown == "rediss://[::1]:7/2"


@pytest.mark.parametrize("url", ["", "disk:", "disk", "memory:x", "file:/x", "/tmp/x"])
def test_an_unknown_url_lists_the_forms(url: str) -> None:
    with pytest.raises(StoreRefused, match=r"disk:PATH or memory:"):
        make_store(url)
