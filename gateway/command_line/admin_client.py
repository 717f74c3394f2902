"""Asks the admin port of the running gateway that the settings name, and says plainly why it does not answer.

It uses no proxy: the port is this machine's, or that of a machine of ours.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self

import httpx2 as httpx
import msgspec

from gateway.command_line.console import make_printable
from gateway.command_line.health import choose_loopback
from gateway.settings import Settings

API: Final = "/api/v1"
_TIMEOUT_SECONDS: Final = 30.0
_UNAUTHORIZED, _NOT_FOUND = 401, 404
_LONGEST_DETAIL_CHARS: Final = 500

Query = Mapping[str, str | int]


class AdminError(Exception):
    """Why the gateway did not do what it was asked, in one line. status: of HTTP; 0 if nothing answered."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class AdminClient:
    """`with AdminClient(settings) as client:`. Every call may raise AdminError."""

    def __init__(self, settings: Settings) -> None:
        admin = settings.admin
        host = choose_loopback(admin.host)
        self._place = f"{host} port {admin.port}"
        token = admin.token.get_secret_value() if admin.token is not None else None
        self._client = httpx.Client(
            base_url=f"http://{f'[{host}]' if ':' in host else host}:{admin.port}",
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=_TIMEOUT_SECONDS,
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def get(self, path: str, query: Query | None = None) -> Any:
        """The JSON value of the answer."""
        return self._ask("GET", path, query=query)

    def post(self, path: str, body: Mapping[str, object]) -> Any:
        return self._ask("POST", path, body=body)

    def delete(self, path: str) -> Any:
        return self._ask("DELETE", path)

    def read_events(self, name: str) -> Iterator[Any]:
        """The JSON values of all events of this name, as they come, until the gateway ends. A None comes with
        each sign of life between them.
        """
        with self._mapped_errors(), self._client.stream("GET", f"{API}/events") as response:
            if response.status_code != httpx.codes.OK:
                response.read()
                raise self._make_error(response)
            yield None
            yield from _parse_events(response.iter_lines(), name)

    def _ask(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Mapping[str, object] | None = None,
    ) -> Any:
        with self._mapped_errors():
            response = self._client.request(method, API + path, params=query, json=body)
        if response.status_code >= httpx.codes.BAD_REQUEST:
            raise self._make_error(response)
        return _parse(response.content)

    @contextmanager
    def _mapped_errors(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError as error:
            raise AdminError(
                f"no gateway answers at the admin port, {self._place}: give this command the --config or "
                "--admin-port that it was started with, or start it: gateway serve"
            ) from error
        except httpx.HTTPError as error:
            reason = "in time" if isinstance(error, httpx.TimeoutException) else "to the end"
            raise AdminError(f"the gateway at {self._place} did not answer {reason}") from error

    def _make_error(self, response: httpx.Response) -> AdminError:
        status = response.status_code
        if status == _UNAUTHORIZED:
            return AdminError(
                "the gateway wants its admin.token: name it with --config FILE or GATEWAY_ADMIN_TOKEN", status
            )
        problem = _parse(response.content, default={})
        detail = problem.get("detail") or problem.get("error") if isinstance(problem, dict) else None
        if not isinstance(detail, str):
            what = "knows no such path, so it may be an older one" if status == _NOT_FOUND else "refused"
            return AdminError(f"the gateway at {self._place} {what} (status {status})", status)
        return AdminError(make_printable(detail[:_LONGEST_DETAIL_CHARS]), status)


def _parse(content: bytes, default: Any = None) -> Any:
    """Raises AdminError for what is not JSON, unless there is a default."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        if default is not None:
            return default
        raise AdminError("what answered is not the admin port of a gateway") from error


def _parse_events(lines: Iterator[str], name: str) -> Iterator[Any]:
    current = ""
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            current = value
        elif field == "data" and current == name:
            yield _parse(value.encode())
        elif not line:
            current = ""
            yield None
