"""All errors that are raised on purpose, by who is at fault.

GatewayError
├── HookFailed          a hook failed; it is ignored
├── RequestRefused      the client sent a request that must not be forwarded (refused in its own wire format)
│   └── Overloaded          nothing is wrong with it, but there is no room for it now
├── Unreadable          the bytes are not understood, so they pass through unchanged
│   └── BeyondBounds        to understand them would cost too much
└── UpstreamFailed      the upstream did not respond (a response, whatever its status, is never an error)
    ├── UpstreamStalled     it was silent for too long
    └── ModelUnknown        it does not have the model that a request of our own named
"""

# Clients wait longer with each attempt of their own.
_RETRY_SECONDS = 1


class GatewayError(Exception):
    """The root of all errors that are raised on purpose."""


class HookFailed(GatewayError):
    """The hook did not respond in time, or its response is invalid."""


class RequestRefused(GatewayError):
    """status: the HTTP status of the response. kind, code: as in OpenAI's error object.

    retry_after_seconds: sent as `Retry-After`, if the client should try again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        code: str | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code
        self.retry_after_seconds = retry_after_seconds


class Overloaded(RequestRefused):
    """503 with `Retry-After`: the client should try again soon. The message says why."""

    def __init__(self, message: str) -> None:
        super().__init__(503, message, kind="server_error", retry_after_seconds=_RETRY_SECONDS)


class Unreadable(GatewayError):
    """The body does not have the wire format of its path."""


class BeyondBounds(Unreadable):
    """The body holds more than the gateway reads. The message says what, and can be shown."""


class UpstreamFailed(GatewayError):
    """The connection could not be made, broke, or carried invalid data."""


class ModelUnknown(UpstreamFailed):
    """The upstream does not have the model that a request of our own named."""


class UpstreamStalled(UpstreamFailed):
    """Nothing arrived for longer than the upstream's `idle_seconds`."""
