"""Why a strict upstream refuses a request, independent of the wire format."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """kind: the `type` of the error object. param: the field that OpenAI names as the cause.
    details: what Anthropic adds for programs."""

    message: str
    code: str | None = None
    kind: str = "invalid_request_error"
    param: str | None = None
    status: int = 400
    details: Mapping[str, object] | None = None
