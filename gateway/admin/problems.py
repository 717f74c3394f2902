"""Errors of the admin API as problem details, RFC 9457: `application/problem+json`."""

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

import msgspec
from aiohttp import web

CONTENT_TYPE: Final = "application/problem+json"
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


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
        status=status, body=msgspec.json.encode(problem), content_type=CONTENT_TYPE, headers=headers
    )
