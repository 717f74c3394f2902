"""Calls the operations of the admin API by their names in its document, and checks each answer against it."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from jsonschema import Draft202012Validator

JSONObject = dict[str, Any]

PROBLEM: Final = "application/problem+json"
EVENTS: Final = "text/event-stream"
MARKDOWN: Final = "text/markdown"
LINES: Final = "application/x-ndjson"
_METHODS: Final = ("get", "post", "put", "delete")


@dataclass(frozen=True)
class APIAnswer:
    """body: of a stream its first block."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class DocumentedAPI:
    """seen: each operation with the statuses that it has answered."""

    root_url: str
    document: JSONObject
    headers: Mapping[str, str]
    seen: set[tuple[str, int]] = field(default_factory=set)

    def list_operations(self) -> Iterator[tuple[str, str, JSONObject]]:
        """Method, path and description of each."""
        for path, methods in self.document["paths"].items():
            for method in _METHODS:
                if method in methods:
                    yield method.upper(), path, methods[method]

    def list_statuses(self) -> set[tuple[str, int]]:
        """Everything that the document says may be answered."""
        return {
            (operation["operationId"], int(status))
            for _, _, operation in self.list_operations()
            for status in operation["responses"]
        }

    async def call(
        self,
        name: str,
        query: str = "",
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> APIAnswer:
        """names: of the path. headers: in place of the token. Raises AssertionError for an answer that the
        document does not describe.
        """
        method, path, operation = self._find(name)
        for key, value in names.items():
            path = path.replace(f"{{{key}}}", quote(value, safe=""))
        answer = await self._ask(method, f"{path}{query}", body, self.headers if headers is None else headers)
        self._check(operation, answer)
        self.seen.add((name, answer.status))
        return answer

    def _find(self, name: str) -> tuple[str, str, JSONObject]:
        return next(each for each in self.list_operations() if each[2]["operationId"] == name)

    async def _ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> APIAnswer:
        url = self.root_url + path
        async with (
            asyncio.timeout(60),
            aiohttp.ClientSession(headers=headers) as client,
            client.request(method, url, data=body or None) as response,
        ):
            is_stream = response.content_type == EVENTS
            content = response.content
            read = await (content.readuntil(b"\n\n") if is_stream else content.read())
            return APIAnswer(response.status, response.headers.copy(), read)

    def _check(self, operation: JSONObject, answer: APIAnswer) -> None:
        what = f"{operation['operationId']}: {answer.status} {answer.body[:400]!r}"
        assert str(answer.status) in operation["responses"], what
        contents = operation["responses"][str(answer.status)]["content"]
        media = answer.headers["Content-Type"].partition(";")[0]
        assert media in contents, what
        if media in (EVENTS, LINES, MARKDOWN):
            return
        value = answer.json()
        errors = list(make_validator(self.document, contents[media]["schema"]).iter_errors(value))
        assert not errors, f"{what}: {errors[0].message} at {errors[0].json_path}"
        if media == PROBLEM:
            assert value["status"] == answer.status, what


async def open_documented_api(root_url: str, token: str = "") -> DocumentedAPI:
    """With the document that this gateway serves."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.get(f"{root_url}/api/v1/openapi.json") as response,
    ):
        assert response.status == 200
        return DocumentedAPI(root_url, await response.json(), headers)


def make_validator(document: JSONObject, schema: JSONObject) -> Draft202012Validator:
    """Of a value that has what the schema says, and no further fields."""
    components = _close(document["components"])
    return Draft202012Validator({**_close(schema), "components": components})


def _close(schema: Any) -> Any:
    """The same schema without room for fields that it does not name."""
    if isinstance(schema, list):
        return [_close(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _close(each) for name, each in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed
