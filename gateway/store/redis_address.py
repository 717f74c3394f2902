"""Where a Redis store is: `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE][?NAME=VALUE&…]`.

The password is in no text that this module makes.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote

SCHEMES: Final = ("redis", "rediss")
FORM: Final = "redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]"

_DEFAULT_PORT: Final = 6379
# Two round trips and what the event loop adds to them stay below 100 ms.
_DEFAULT_TIMEOUT_MS: Final = 40
_TIMEOUTS_MS: Final = range(5, 60_001)

# A password may come from `${VAR}` as it is: it ends at the last @.
_URL: Final = re.compile(
    r"(?P<scheme>rediss?)://(?:(?P<login>.*)@)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/?#@\[\]]+)(?::(?P<port>\d{1,5}))?"
    r"(?:/(?P<database>\d{1,5})?)?(?:\?(?P<query>[^\s#]*))?",
    re.DOTALL,
)
# It is a part of patterns, so it has none of their characters.
_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FILES: Final = ("ca_file", "certificate_file", "key_file")
_NAMES: Final = ("prefix", "timeout_ms", *_FILES)


@dataclass(frozen=True, kw_only=True)
class Address:
    """prefix: of every key. timeout_ms: a server that answers later counts as away."""

    host: str
    port: int = _DEFAULT_PORT
    database: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    uses_tls: bool = False
    prefix: str = "gateway"
    timeout_ms: int = _DEFAULT_TIMEOUT_MS
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    @property
    def shown(self) -> str:
        """For logs: without user and password."""
        scheme = "rediss" if self.uses_tls else "redis"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}/{self.database}"

    @property
    def files(self) -> Mapping[str, Path]:
        """Those that are named, by their parameter."""
        found = {name: getattr(self, name) for name in _FILES}
        return {name: path for name, path in found.items() if path is not None}


def is_redis(url: str) -> bool:
    return url.partition(":")[0] in SCHEMES


def parse_address(url: str) -> Address:
    """Raises ValueError, in words that follow the name of the setting."""
    parts = _URL.fullmatch(url)
    if parts is None:
        raise ValueError(f"must be {FORM}")
    user, password = _parse_login(parts["login"])
    port = int(parts["port"] or _DEFAULT_PORT)
    if not 0 < port < 65_536:
        raise ValueError("has a port that does not exist")
    parameters = _parse_query(parts["query"] or "")
    address = Address(
        host=parts["host"].strip("[]"),
        port=port,
        database=int(parts["database"] or 0),
        user=user,
        password=password,
        uses_tls=parts["scheme"] == "rediss",
        prefix=_check_prefix(parameters.get("prefix", "gateway")),
        timeout_ms=_parse_timeout(parameters.get("timeout_ms", str(_DEFAULT_TIMEOUT_MS))),
        **{name: Path(parameters[name]) for name in _FILES if name in parameters},
    )
    _check_files(address)
    return address


def _parse_login(login: str | None) -> tuple[str | None, str | None]:
    if login is None:
        return None, None
    user, colon, password = login.partition(":")
    if not colon or not password:
        raise ValueError("must have a password before the @, as in redis://:PASSWORD@HOST")
    return unquote(user) or None, unquote(password)


def _parse_query(query: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for pair in query.split("&") if query else ():
        name, _, value = pair.partition("=")
        if name not in _NAMES:
            nearest = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.0)[0]
            raise ValueError(f"has an unknown parameter; the nearest valid one is {nearest!r}")
        if name in parameters or not value:
            raise ValueError(f"must have one value of the parameter {name!r}")
        parameters[name] = unquote(value)
    return parameters


def _check_prefix(prefix: str) -> str:
    if not _PREFIX.fullmatch(prefix):
        raise ValueError("must have a prefix of letters, digits and . _ - only")
    return prefix


def _parse_timeout(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) in _TIMEOUTS_MS):
        raise ValueError(f"must have a timeout_ms from {_TIMEOUTS_MS[0]} to {_TIMEOUTS_MS[-1]}")
    return int(text)


def _check_files(address: Address) -> None:
    if address.files and not address.uses_tls:
        raise ValueError(f"must be rediss:// to use {' and '.join(address.files)}")
    if (address.certificate_file is None) != (address.key_file is None):
        raise ValueError("must have both of certificate_file and key_file, or none")
