"""Answers of our own, which no upstream wrote: whole ones, in JSON."""

from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus

from aiohttp import hdrs

from gateway.answer_head import AnswerHead, make_fields
from gateway.downstream_answer import Answer
from gateway.downstream_request import Request


def send_own(request: Request, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
    """Raises ConnectionError where the client has gone."""
    head = make_own_head(status, {hdrs.CONTENT_LENGTH: str(len(body)), **(headers or {})})
    answer = Answer(head, request)
    answer.finish(body)
    return answer


def make_own_head(status: int, headers: Mapping[str, str]) -> AnswerHead:
    """Who writes an answer dates it (RFC 9110 §6.6.1)."""
    own = {hdrs.CONTENT_TYPE: "application/json", hdrs.DATE: formatdate(usegmt=True), **headers}
    return AnswerHead(status, HTTPStatus(status).phrase, make_fields(own))
