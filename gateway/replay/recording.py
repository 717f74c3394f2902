"""The values that readers make of files: recordings, each with the requests that its client sent."""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

CHAT_PATH: Final = "/v1/chat/completions"
MESSAGES_PATH: Final = "/v1/messages"
RESPONSES_PATH: Final = "/v1/responses"


class RecordedUsage(msgspec.Struct, frozen=True):
    """Tokens as the upstream reported them. prompt_tokens includes cached ones. output_tokens None: what was
    recorded is no count of the whole reply.
    """

    prompt_tokens: int
    output_tokens: int | None = None


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request as its client sent it."""

    path: str
    body: bytes
    # Without credentials.
    headers: tuple[tuple[str, str], ...] = ()
    usage: RecordedUsage | None = None
    # What the model replied: messages or items in the form of the format; empty if it is not known.
    reply: tuple[bytes, ...] = ()
    # Whether the upstream refused it, or broke off.
    has_failed: bool = False


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What one client sent, oldest first. All of it was read by one reader."""

    # The form of the file, in words for people.
    kind: str
    # Makes the requests; may be called more than once.
    list_requests: Callable[[], Iterator[RecordedRequest]]
    # How many requests there are.
    count: int
    # Lines or entries that could not be read.
    skipped: int = 0
