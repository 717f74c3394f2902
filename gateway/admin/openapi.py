"""The OpenAPI 3.1 document of the admin API, made of its operations and of the Structs that they answer."""

import re
from functools import cache
from typing import Any, Final

import msgspec
from aiohttp import web

from gateway import __version__
from gateway.admin.operations import JSON, OPERATIONS, PREFIXES, JSONObject, Operation
from gateway.admin.routing import PROBLEM, ProblemDetails

_REFERENCE: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"{(\w+)}")
# Every operation may answer these: the token is missing, the host is wrong.
_ALWAYS: Final = (401, 403)
_PROBLEMS: Final = {
    400: "The request is not understood.",
    401: "The token is missing or wrong.",
    403: "Wrong host or origin, or texts that are not to be shown.",
    404: "There is no such thing.",
    409: "Not possible in this state.",
    422: "The text was refused by the checks.",
    503: "Not possible at the moment.",
}


async def show_document(_: web.Request) -> web.Response:
    return web.Response(body=_render_document(), content_type=JSON)


@cache
def _render_document() -> bytes:
    types = sorted(
        {type_ for each in OPERATIONS for type_ in (each.answer, each.body) if type_ is not None},
        key=lambda type_: type_.__name__,
    )
    _, schemas = msgspec.json.schema_components([ProblemDetails, *types], ref_template=_REFERENCE)
    paths: dict[str, JSONObject] = {}
    for operation in OPERATIONS:
        paths.setdefault(PREFIXES[0] + operation.path, {})[operation.method.lower()] = _describe(operation)
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Admin API of the context window gateway", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        # Without `admin.token` no token is needed.
        "security": [{"token": []}, {}],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _describe(operation: Operation) -> JSONObject:
    described: JSONObject = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": {str(operation.status): _describe_answer(operation), **_describe_problems(operation)},
    }
    parameters = [*_list_path_parameters(operation), *_list_query_parameters(operation)]
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        content = {JSON: {"schema": _refer(operation.body)}}
        described["requestBody"] = {"required": False, "content": content}
    return described


def _describe_answer(operation: Operation) -> JSONObject:
    schema = _refer(operation.answer) if operation.answer is not None else {}
    texts = {media: {"schema": {"type": "string"}} for media in operation.more_media}
    return {"description": operation.summary, "content": {operation.media: {"schema": schema}, **texts}}


def _describe_problems(operation: Operation) -> JSONObject:
    content = {PROBLEM: {"schema": _refer(ProblemDetails)}}
    statuses = {*_ALWAYS, *operation.problems}
    if operation.reach != "supervisor":
        # The workers do not answer.
        statuses.add(503)
    if operation.query is not None or operation.body is not None:
        statuses.add(400)
    if "{" in operation.path:
        statuses.add(404)
    return {
        str(status): {"description": _PROBLEMS[status], "content": content} for status in sorted(statuses)
    }


def _list_path_parameters(operation: Operation) -> list[JSONObject]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(operation.path)
    ]


def _list_query_parameters(operation: Operation) -> list[JSONObject]:
    if operation.query is None:
        return []
    _, components = msgspec.json.schema_components([operation.query], ref_template=_REFERENCE)
    properties: dict[str, Any] = components[operation.query.__name__]["properties"]
    return [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in properties.items()
    ]


def _refer(type_: type) -> JSONObject:
    return {"$ref": _REFERENCE.format(name=type_.__name__)}
