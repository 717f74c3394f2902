import pytest

from gateway.core.errors import (
    GatewayError,
    Overloaded,
    RequestRefused,
    Unreadable,
    UpstreamFailed,
    UpstreamStalled,
)


@pytest.mark.parametrize("kind", [RequestRefused, Unreadable, UpstreamFailed, UpstreamStalled])
def test_everything_raised_on_purpose_has_one_root(kind: type[Exception]) -> None:
    assert issubclass(kind, GatewayError)


def test_a_silent_upstream_has_failed() -> None:
    assert issubclass(UpstreamStalled, UpstreamFailed)


def test_a_refusal_has_the_status_and_code_of_its_response() -> None:
    refusal = RequestRefused(401, "No.", code="invalid_api_key")
    found = (str(refusal), refusal.status, refusal.kind, refusal.code)
    assert found == ("No.", 401, "invalid_request_error", "invalid_api_key")


def test_an_overloaded_gateway_asks_to_try_again() -> None:
    refusal = Overloaded("Full.")
    assert (refusal.status, refusal.kind, refusal.retry_after_seconds) == (503, "server_error", 1)
