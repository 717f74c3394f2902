"""What is said about an upstream that gave no response: address and reason, and nothing of what it sent."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable

import aiohttp
import httpx2 as httpx
import pytest
from aiohttp.http_exceptions import BadStatusLine, HttpProcessingError, LineTooLong

from gateway.core.errors import UpstreamFailed
from gateway.upstream.failures import BrokenResponse, UploadFailed, describe_failure, raise_translated
from tests.builders.upstream import make_idle_timeout, make_upstream
from tests.wire_through.raw import Ending, RawUpstream, writing

URL = "http://user:word@api.test:81/v1/chat?key=secret"
ORIGIN = "http://api.test:81"


def caused_by(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def make_certificate_error() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "text of the library")
    error.verify_message = "self-signed certificate"
    return error


CONNECT_CAUSES = [
    (ConnectionRefusedError(111, "Connect call failed"), "connection refused"),
    (socket.gaierror(-2, "Name or service not known"), "name not found"),
    (make_certificate_error(), "TLS certificate not accepted: self-signed certificate"),
    (TimeoutError(), "no connection in time"),
    (OSError("several things"), "no reason given"),
]


@pytest.mark.parametrize(("cause", "reason"), CONNECT_CAUSES)
def test_a_connection_that_was_not_made_names_address_and_reason(cause: BaseException, reason: str) -> None:
    error = caused_by(httpx.ConnectError("secret"), caused_by(OSError("secret"), cause))
    assert describe_failure(error, URL) == f"could not connect to {ORIGIN}: {reason}"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (BrokenResponse("answered in HTTP/2.0"), f"{ORIGIN} answered in HTTP/2.0"),
        (aiohttp.ServerDisconnectedError(), f"{ORIGIN} closed the connection before it answered"),
        (aiohttp.ClientOSError(104, "secret"), f"{ORIGIN} reset the connection before it answered"),
        (ConnectionResetError(104, "secret"), f"{ORIGIN} reset the connection before it answered"),
        (BadStatusLine("secret"), f"{ORIGIN} sent something that is not HTTP/1.1"),
        (
            caused_by(HttpProcessingError(message="secret"), LineTooLong(b"secret", 9)),
            f"{ORIGIN} sent a head that is too large",
        ),
        (aiohttp.ClientPayloadError("secret"), f"{ORIGIN} broke off in the middle of its response"),
        (httpx.ReadError("secret"), f"{ORIGIN} broke off in the middle of its response"),
        (httpx.DecodingError("secret"), f"{ORIGIN} sent a body that cannot be decoded"),
        (TimeoutError(), f"{ORIGIN} did not answer in time"),
        (httpx.ReadTimeout("secret"), f"{ORIGIN} did not answer in time"),
        (httpx.InvalidURL("secret"), f"no request to {ORIGIN} could be written"),
        (ValueError("secret"), f"no request to {ORIGIN} could be written"),
        (UploadFailed(), f"the request body could not be sent to {ORIGIN}"),
        (OSError(28, "secret"), f"the connection to {ORIGIN} failed: no space left on device"),
        (aiohttp.ClientConnectionError("secret"), f"the connection to {ORIGIN} failed: no reason given"),
    ],
)
def test_every_failure_names_the_address_and_nothing_that_was_sent(error: BaseException, text: str) -> None:
    assert describe_failure(error, URL) == text


async def ask_with_aiohttp(url: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        await response.read()


async def ask_with_httpx(url: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        await client.get(url)


@pytest.mark.parametrize("ask", [ask_with_aiohttp, ask_with_httpx])
@pytest.mark.parametrize(
    ("answer", "ending", "text"),
    [
        (b"", "close", "closed the connection before it answered"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "close", "broke off in the middle"),
    ],
)
async def test_both_libraries_are_understood(
    ask: Callable[[str], Awaitable[None]], answer: bytes, ending: Ending, text: str
) -> None:
    async with RawUpstream(writing(answer, then=ending)) as raw:
        with pytest.raises((aiohttp.ClientError, httpx.HTTPError)) as failed:
            await ask(raw.base_url)
        assert text in describe_failure(failed.value, raw.base_url)


async def test_a_foreign_error_becomes_a_failed_upstream_with_its_name() -> None:
    idle = make_idle_timeout(make_upstream(URL))
    with pytest.raises(UpstreamFailed, match=f"^default: {ORIGIN} closed the connection") as failed:
        raise_translated(aiohttp.ServerDisconnectedError(), idle)
    assert isinstance(failed.value.__cause__, aiohttp.ServerDisconnectedError)


async def test_a_cancellation_stays_one() -> None:
    with pytest.raises(asyncio.CancelledError):
        raise_translated(asyncio.CancelledError(), make_idle_timeout(make_upstream(URL)))
