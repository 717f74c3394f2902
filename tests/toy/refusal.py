"""Why a strict upstream says no, before it is put into the words of a wire format."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """kind: the `type` of the error object. param: what OpenAI names as the cause."""

    message: str
    code: str | None = None
    kind: str = "invalid_request_error"
    param: str | None = None
    status: int = 400
