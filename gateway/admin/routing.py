"""Routes of the operations, and what every handler needs: its query, its body, its answer as JSON, and its
errors as problem details, RFC 9457: `application/problem+json`.
"""

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec
from aiohttp import web

from gateway.admin.operations import EVENTS, OPERATIONS, Operation, list_paths
from gateway.store.interface import StoreError

Answer = msgspec.Struct | web.StreamResponse
OperationHandler = Callable[[web.Request], Awaitable[Answer]]
# By the names of the operations.
Handlers = Mapping[str, OperationHandler]
T = TypeVar("T", bound=msgspec.Struct)

PROBLEM: Final = "application/problem+json"
# Who asked the supervisor of several workers, whose connections to them have no address.
PEER_HEADER: Final = "X-Gateway-Peer"
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
# What is shown is not written to the disk of the client that asks for it.
PRIVATE: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
# Of a store that is away: it is asked again about once a second.
_RETRY: Final = {"Retry-After": "5"}


class ProblemDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong. detail: for the person who asked; it never quotes a conversation."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


class AdminRefusal(Exception):
    """Raised by a handler, and answered with a problem of this status."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] = _NO_HEADERS) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


def respond_problem(status: int, detail: str, headers: Mapping[str, str] = _NO_HEADERS) -> web.Response:
    problem = ProblemDetails(title=HTTPStatus(status).phrase, status=status, detail=detail)
    return web.Response(
        status=status, body=msgspec.json.encode(problem), content_type=PROBLEM, headers=headers
    )


def make_routes(handlers: Handlers) -> list[web.RouteDef]:
    """Of every operation, under every prefix. Raises KeyError for one without a handler."""
    routes = []
    for operation in OPERATIONS:
        handle = _make_handler(operation, handlers[operation.name])
        # A stream of events has no end, so there is no `HEAD` of it.
        options = {"allow_head": False} if operation.media == EVENTS else {}
        routes += [web.route(operation.method, path, handle, **options) for path in list_paths(operation)]
    return routes


def read_query(request: web.Request, kind: type[T]) -> T:
    """Raises AdminRefusal (400)."""
    try:
        return msgspec.convert(dict(request.query), kind, strict=False)
    except msgspec.ValidationError as error:
        raise AdminRefusal(400, f"query: {error}") from error


async def read_body(request: web.Request, kind: type[T]) -> T:
    """An empty one stands for an object without fields. Raises AdminRefusal (400)."""
    try:
        return msgspec.json.decode(await request.read() or b"{}", type=kind)
    except msgspec.MsgspecError as error:
        raise AdminRefusal(400, f"body: {error}") from error
    except (UnicodeDecodeError, web.HTTPRequestEntityTooLarge) as error:
        raise AdminRefusal(400, "body: too large, or not UTF-8") from error


def _make_handler(
    operation: Operation, handler: OperationHandler
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            answer = await handler(request)
        except AdminRefusal as refusal:
            return respond_problem(refusal.status, refusal.detail, refusal.headers)
        except StoreError as error:
            return respond_problem(503, f"the store does not answer: {error}", _RETRY)
        if isinstance(answer, web.StreamResponse):
            return answer
        return web.Response(
            status=operation.status,
            body=msgspec.json.encode(answer),
            content_type=operation.media,
            headers=PRIVATE,
        )

    return handle
