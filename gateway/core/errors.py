"""What can go wrong, sorted by who is at fault.

GatewayError
├── HookFailed          somebody's hook: it then has said nothing
├── RequestRefused      downstream: a request we must not carry (answered in its own wire format)
├── Unreadable          nobody: bytes we do not understand, so they pass through untouched
└── UpstreamFailed      upstream: no answer at all (an answer, whatever its status, is never an error)
    ├── UpstreamStalled     it went silent
    └── ModelUnknown        to a call of our own: it does not serve the model that we asked for
"""


class GatewayError(Exception):
    """Root of everything raised on purpose."""


class HookFailed(GatewayError):
    """No answer in time, or none that makes sense."""


class RequestRefused(GatewayError):
    """status: HTTP status to answer with. kind, code: as in OpenAI's error object."""

    def __init__(
        self, status: int, message: str, kind: str = "invalid_request_error", code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code


class Unreadable(GatewayError):
    """Not a body of the wire format that its path promises."""


class UpstreamFailed(GatewayError):
    """The connection could not be made, broke, or made no sense."""


class ModelUnknown(UpstreamFailed):
    """An upstream does not serve the model that a call of ours named."""


class UpstreamStalled(UpstreamFailed):
    """Nothing came for longer than the upstream's `idle_seconds`."""
