"""What Anthropic holds of Messages threads: each response with its history, until it is continued.

As the SDKs tell it (anthropic 2.12 for Python, @anthropic-ai/sdk 1.12 for npm: lib/threads). A response can
be continued once. The system prompt and the tools belong to the thread, and a `continue` must not repeat
them.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from tests.toy.refusal import Refusal
from tests.toy.reply import read_object

Request = dict[str, object]
BETA: Final = "message-threads-2026-08-12"
_CREATE_ONLY: Final = ("system", "tools")
_REPLAYED: Final = ("thread_not_found", "thread_already_continued", "thread_continue_in_flight")
# A field that must stay the same across the turns of a thread.
_SAME: Final = "model"


class Threads:
    """unsupported: what every request of a thread is refused for, such as `hipaa`."""

    def __init__(self) -> None:
        self.unsupported: tuple[str, ...] = ()
        self._held: dict[str, Request] = {}  # by the id of the response
        self._in_flight: set[str] = set()
        self._continued: set[str] = set()

    @property
    def ids(self) -> list[str]:
        """The responses that are held, in the order of their making."""
        return [*self._held]

    def forget(self) -> None:
        """Every thread is lost."""
        self._held.clear()

    def recall(self, request: Request) -> Request | Refusal:
        """The request with what its thread holds before it; the same object if it continues none."""
        thread = request.get("thread")
        if not isinstance(thread, dict):
            return request
        if self.unsupported:
            return _refuse_thread(
                "thread_unsupported_request",
                "This request cannot be threaded.",
                unsupported=list(self.unsupported),
            )
        name = thread.get("previous_message_id")
        return self._recall(request, str(name)) if thread.get("type") == "continue" else request

    def _recall(self, request: Request, name: str) -> Request | Refusal:
        held = self._held.get(name)
        if held is None:
            words = f"No usable thread state was found for `{name}`."
            return _refuse_thread("thread_not_found", words, status=404, kind="not_found_error")
        if name in self._in_flight:
            return _refuse_thread(
                "thread_continue_in_flight", f"Another request is still continuing from `{name}`."
            )
        if name in self._continued:
            return _refuse_thread("thread_already_continued", f"`{name}` has already been continued.")
        repeated = [field for field in _CREATE_ONLY if field in request]
        if repeated:
            return Refusal(message=f"{repeated[0]}: cannot be set on `thread.type: continue`")
        if request.get(_SAME) != held.get(_SAME):
            return _refuse_thread(
                "thread_fingerprint_mismatch", f"`{_SAME}` differs from the one stored with the thread."
            )
        kept: Request = {field: held[field] for field in _CREATE_ONLY if field in held}
        return {**request, **kept, "messages": [*_read_messages(held), *_read_messages(request)]}

    def keep(self, message_id: str, request: Request, content: Sequence[Mapping[str, object]]) -> None:
        """request: with everything recalled. Cache marks are for the request that has them."""
        thread = request.get("thread")
        if not isinstance(thread, dict):
            return
        if thread.get("type") == "continue":
            self._in_flight.add(str(thread["previous_message_id"]))
        said = {"role": "assistant", "content": list(content)}
        messages = [_without_marks(message) for message in _read_messages(request)]
        self._held[message_id] = {**request, "messages": [*messages, said]}

    def settle(self, request: Request) -> None:
        """The response to this request has ended."""
        thread = request.get("thread")
        name = str(thread.get("previous_message_id")) if isinstance(thread, dict) else ""
        if name in self._in_flight:
            self._in_flight.remove(name)
            self._continued.add(name)


def find_violation(request: object, betas: str) -> str | None:
    """betas: the header that selects beta features."""
    thread = request.get("thread") if isinstance(request, dict) else None
    if thread is None:
        return None
    if BETA not in betas:
        return "thread: Extra inputs are not permitted"
    match thread:
        case {"type": "create", **rest} if not rest:
            return None
        case {"type": "continue", "previous_message_id": str(), **rest} if not rest:
            return None
    return "thread: Input should be a `create` or a `continue`"


def find_thread_error(body: bytes) -> str | None:
    """The code of an error after which the SDKs begin the thread anew, with the whole history."""
    match read_object(body):
        case {"error": {"details": {"error_code": str(code)}}} if code in _REPLAYED:
            return code
    return None


def _read_messages(request: Mapping[str, object]) -> list[object]:
    messages = request.get("messages")
    return messages if isinstance(messages, list) else []


def _without_marks(value: object) -> object:
    if isinstance(value, list):
        return [_without_marks(part) for part in value]
    if not isinstance(value, dict):
        return value
    kept = {key: part for key, part in value.items() if key != "cache_control"}
    return kept | {"content": _without_marks(kept["content"])} if "content" in kept else kept


def _refuse_thread(
    code: str, message: str, *, status: int = 400, kind: str = "invalid_request_error", **more: object
) -> Refusal:
    return Refusal(message=message, status=status, kind=kind, details={"error_code": code, **more})
