"""Upstreams that lead back to this gateway or to another one are recognized."""

import socket

import pytest

from gateway.core.errors import RequestRefused
from gateway.settings import Listen
from gateway.upstream.loop_guard import leads_to_itself, refuse_gateway
from tests.builders.upstream import make_upstream, requesting
from tests.wire_through.raw import RawUpstream, render_answer, writing


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


def test_without_a_port_the_scheme_says_it() -> None:
    assert leads_to_itself(make_upstream("http://127.0.0.1"), Listen(host="127.0.0.1"), 80)
    assert not leads_to_itself(make_upstream("https://127.0.0.1"), Listen(host="127.0.0.1"), 80)


def test_every_address_of_this_machine_leads_to_a_gateway_that_listens_on_all() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert leads_to_itself(make_upstream("http://[::1]:8080"), Listen(host="0.0.0.0"), 8080)


@pytest.mark.parametrize("name", ["x-gateway-plan", "X-Gateway-Plan"])
async def test_a_response_of_another_gateway_is_refused(name: str) -> None:
    script = writing(render_answer(b"{}", [(name, "passthrough")]))
    async with RawUpstream(script) as raw, requesting(raw.base_url) as requester:
        response = await requester.request()
        with pytest.raises(RequestRefused, match="Upstream 'default' is a gateway itself") as refused:
            refuse_gateway(response, requester.upstream)
        response.close()
    assert (refused.value.status, refused.value.code) == (508, "gateway_loop")


async def test_any_other_response_is_accepted() -> None:
    async with RawUpstream() as raw, requesting(raw.base_url) as requester:
        response = await requester.request()
        refuse_gateway(response, requester.upstream)
        response.close()
