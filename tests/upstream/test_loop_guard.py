"""Upstreams that lead back to this gateway or to another one are recognized."""

import socket

import pytest

from gateway.settings import Listen
from gateway.upstream.loop_guard import describe_loop, leads_to_itself, make_loop_error
from tests.builders.upstream import make_upstream


@pytest.mark.parametrize(
    ("base_url", "host", "expected"),
    [
        ("http://127.0.0.1:8080/v1", "127.0.0.1", True),
        ("http://localhost:8080", "127.0.0.1", True),
        ("http://127.0.0.1:8080/v1", "0.0.0.0", True),
        ("http://127.0.0.1:8081/v1", "127.0.0.1", False),
        ("http://127.0.0.2:8080/v1", "127.0.0.1", False),
        ("http://192.0.2.1:8080/v1", "0.0.0.0", False),
        ("http://no-such-host.invalid:8080", "127.0.0.1", False),
    ],
)
def test_an_upstream_at_the_gateways_own_address_and_port_leads_to_itself(
    base_url: str, host: str, expected: bool
) -> None:
    assert leads_to_itself(make_upstream(base_url), Listen(host=host, port=0), 8080) == expected


def test_the_upstream_that_leads_to_the_gateway_is_named() -> None:
    upstreams = [make_upstream("http://127.0.0.1:8081/v1"), make_upstream("http://127.0.0.1:8080/v1")]
    listen = Listen(host="127.0.0.1")
    assert describe_loop(upstreams[:1], listen, 8080) is None
    described = describe_loop(upstreams, listen, 8080)
    assert described is not None and "http://127.0.0.1:8080/v1" in described


def test_without_a_port_the_scheme_says_it() -> None:
    assert leads_to_itself(make_upstream("http://127.0.0.1"), Listen(host="127.0.0.1"), 80)
    assert not leads_to_itself(make_upstream("https://127.0.0.1"), Listen(host="127.0.0.1"), 80)


def test_every_address_of_this_machine_leads_to_a_gateway_that_listens_on_all() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert leads_to_itself(make_upstream("http://[::1]:8080"), Listen(host="0.0.0.0"), 8080)


def test_the_error_for_a_loop_names_the_upstream() -> None:
    error = make_loop_error(make_upstream("http://127.0.0.1:8080"))
    assert (error.status, error.code) == (508, "gateway_loop")
    assert "Upstream 'default' is a gateway itself" in str(error)
