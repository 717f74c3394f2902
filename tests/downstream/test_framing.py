"""Which heads are refused though the library's parser accepts them."""

import pytest
from aiohttp import HttpVersion, HttpVersion10, HttpVersion11
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.downstream.framing import find_refusal
from gateway.downstream.request import RequestHead


def find_status(
    version: HttpVersion = HttpVersion11, method: str = "POST", target: str = "/v1/files", **headers: str
) -> int | None:
    fields = CIMultiDict({name.replace("_", "-"): value for name, value in ({"Host": "a"} | headers).items()})
    refusal = find_refusal(RequestHead(method, target, CIMultiDictProxy(fields), ()), version)
    return refusal.status if refusal is not None else None


@pytest.mark.parametrize("version", [HttpVersion11, HttpVersion10])
def test_ordinary_requests_are_served(version: HttpVersion) -> None:
    assert find_status(version, Content_Length="3", Expect="100-Continue") is None
    assert find_status(version, "GET", "/v1/models?a=b") is None


@pytest.mark.parametrize("host", ["gateway.test:8080", "[::1]:8080", "127.0.0.1", "", "a_b.internal"])
def test_a_host_is_a_name_and_a_port(host: str) -> None:
    assert find_status(Host=host) is None


@pytest.mark.parametrize("host", ["a b", "a/b", "user@a", "a?b", "a\\b", "a\x01"])
def test_another_host_is_refused(host: str) -> None:
    assert find_status(Host=host) == 400


@pytest.mark.parametrize("version", [HttpVersion(0, 9), HttpVersion(2, 0)])
def test_other_versions_are_refused(version: HttpVersion) -> None:
    assert find_status(version) == 505


def test_a_tunnel_is_refused() -> None:
    assert find_status(method="CONNECT", target="a:80") == 501


@pytest.mark.parametrize("coding", ["gzip, chunked", "", ",chunked", "chunked, gzip", "identity"])
def test_another_transfer_coding_than_chunked_is_refused(coding: str) -> None:
    assert find_status(Transfer_Encoding=coding) == 501
    assert find_status(Transfer_Encoding="Chunked") is None


def test_a_transfer_coding_of_an_old_client_is_refused() -> None:
    assert find_status(HttpVersion10, Transfer_Encoding="chunked") == 400


@pytest.mark.parametrize("expectation", ["200-ok", "100-continue, other", ""])
def test_an_unknown_expectation_is_refused(expectation: str) -> None:
    assert find_status(Expect=expectation) == 417


def test_a_fragment_in_the_target_is_refused() -> None:
    assert find_status(target="/v1/files#part") == 400
