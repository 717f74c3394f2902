"""Asks the admin port of the running gateway that the settings name, and says plainly why it does not answer.

It uses no proxy: the port is this machine's, or that of a machine of ours.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final, Self, TypeVar

import httpx2 as httpx
import msgspec

from gateway.command_line.console import make_printable
from gateway.command_line.health import show_host
from gateway.core.errors import GatewayError
from gateway.settings import Settings

API: Final = "/api/v1"
_TIMEOUT_SECONDS: Final = 30.0
# A large store is written anew.
DELETE_SECONDS: Final = 600.0
_UNAUTHORIZED, _NOT_FOUND = 401, 404
_LONGEST_DETAIL_CHARS: Final = 500

Query = Mapping[str, str | int]
Parsed = TypeVar("Parsed")


class _ProblemDetails(msgspec.Struct, frozen=True):
    """What an error says: a problem of the API, or the older form of one."""

    detail: str = ""
    error: str = ""


class AdminError(GatewayError):
    """Why the gateway did not do what it was asked, in one line."""


class TokenRefused(AdminError):
    """The token is missing, or another one."""


class AdminClient:
    """`with AdminClient(settings) as client:`. Every call may raise AdminError."""

    def __init__(self, settings: Settings) -> None:
        admin = settings.admin
        host = show_host(admin.host)
        self._place = f"{host} port {admin.port}"
        token = admin.token.get_secret_value() if admin.token is not None else None
        self._client = httpx.Client(
            base_url=f"http://{host}:{admin.port}",
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

    def get(self, path: str, answer: type[Parsed], query: Query | None = None) -> Parsed:
        return _parse(self._ask("GET", path, query=query), answer)

    def read(self, path: str) -> bytes:
        """An answer that is no JSON value."""
        return self._ask("GET", path)

    def post(
        self, path: str, answer: type[Parsed], body: Mapping[str, object], seconds: float = _TIMEOUT_SECONDS
    ) -> Parsed:
        return _parse(self._ask("POST", path, body=body, seconds=seconds), answer)

    def delete(self, path: str, answer: type[Parsed]) -> Parsed:
        return _parse(self._ask("DELETE", path, seconds=DELETE_SECONDS), answer)

    def read_events(self, name: str, event: type[Parsed]) -> Iterator[Parsed | None]:
        """All events of this name, as they come, until the gateway ends. None: the stream has begun, or is
        still alive.
        """
        with self._mapped_errors(), self._client.stream("GET", f"{API}/events") as response:
            if response.status_code != httpx.codes.OK:
                response.read()
                raise self._make_error(response)
            yield None
            for data in _read_data(response.iter_lines(), name):
                yield None if data is None else _parse(data, event)

    def _ask(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Mapping[str, object] | None = None,
        seconds: float = _TIMEOUT_SECONDS,
    ) -> bytes:
        with self._mapped_errors():
            response = self._client.request(method, API + path, params=query, json=body, timeout=seconds)
        if response.status_code >= httpx.codes.BAD_REQUEST:
            raise self._make_error(response)
        return response.content

    @contextmanager
    def _mapped_errors(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError as error:
            raise AdminError(
                f"no gateway answers at the admin port, {self._place}: give this command the --config or "
                "--admin-port that it was started with, or start it: refold serve"
            ) from error
        except httpx.HTTPError as error:
            reason = "in time" if isinstance(error, httpx.TimeoutException) else "to the end"
            raise AdminError(f"the gateway at {self._place} did not answer {reason}") from error

    def _make_error(self, response: httpx.Response) -> AdminError:
        status = response.status_code
        if status == _UNAUTHORIZED:
            return TokenRefused(
                "the gateway wants its admin.token: name it with --config FILE or GATEWAY_ADMIN_TOKEN"
            )
        detail = ""
        with suppress(AdminError):
            problem = _parse(response.content, _ProblemDetails)
            detail = problem.detail or problem.error
        if not detail:
            what = "knows no such path, so it may be an older one" if status == _NOT_FOUND else "refused"
            return AdminError(f"the gateway at {self._place} {what} (status {status})")
        return AdminError(make_printable(detail[:_LONGEST_DETAIL_CHARS]))


def _parse(content: bytes, answer: type[Parsed]) -> Parsed:
    """Raises AdminError."""
    try:
        return msgspec.json.decode(content, type=answer)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise AdminError("what answered is not the admin port of a gateway of this version") from error


def _read_data(lines: Iterator[str], name: str) -> Iterator[bytes | None]:
    """The data of each event of this name; None at the end of each block."""
    current = ""
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            current = value
        elif field == "data" and current == name:
            yield value.encode()
        elif not line:
            current = ""
            yield None
