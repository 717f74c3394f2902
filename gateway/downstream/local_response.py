"""Answers of our own, which no upstream wrote: whole ones, in JSON."""

from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus

from aiohttp import hdrs

from gateway.downstream.request import Request
from gateway.downstream.response import Response
from gateway.headers import ResponseHead, make_fields


def send_own(
    request: Request, status: int, body: bytes, headers: Mapping[str, str] | None = None
) -> Response:
    """Raises ConnectionError where the client has gone."""
    answer = Response(make_own_head(status, len(body), headers or {}), request)
    answer.finish(body)
    return answer


def make_own_head(status: int, length: int, headers: Mapping[str, str]) -> ResponseHead:
    """Who writes an answer dates it (RFC 9110 §6.6.1). length: of the body, in bytes."""
    own = {
        hdrs.CONTENT_TYPE: "application/json",
        hdrs.DATE: formatdate(usegmt=True),
        hdrs.CONTENT_LENGTH: str(length),
        **headers,
    }
    return ResponseHead(status, HTTPStatus(status).phrase, make_fields(own))
