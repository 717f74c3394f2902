"""`${VAR}`, `${VAR:-default}` and `${file:PATH}` in a text.

`$${` stands for a literal `${`. Any other dollar is left alone, because keys and passwords hold dollars.
What is put in is not looked at again.
"""

import re
from collections.abc import Mapping
from pathlib import Path

# A secret or an instruction text; anything larger is a mistake (a device, a log file).
MAX_FILE_BYTES = 1 << 20

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<body>[^}]*)(?P<end>\}?)")
_VARIABLE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<fallback>:-(?P<default>.*))?", re.DOTALL)


class Interpolated(str):
    """A text that was put together from references: the field it is meant for decides its type."""

    __slots__ = ()


class InterpolationError(ValueError):
    """Names the reference, never what it holds."""


def apply_interpolation(text: str, env: Mapping[str, str], folder: Path) -> str:
    """Return `text` itself where it holds no reference, else an `Interpolated`.

    Paths are relative to `folder`. Raises InterpolationError.
    """
    if "${" not in text:
        return text
    return Interpolated(_REFERENCE.sub(lambda found: _replacement(found, env, folder), text))


def _replacement(found: re.Match[str], env: Mapping[str, str], folder: Path) -> str:
    if found.group(0) == "$${":
        return "${"
    if not found.group("end"):
        raise InterpolationError("'${' without its '}' (write '$${' for a literal '${')")
    body = found.group("body")
    if body.startswith("file:"):
        return _load_text(body.removeprefix("file:"), folder)
    return _read_variable(body, env)


def _read_variable(body: str, env: Mapping[str, str]) -> str:
    """As in a shell, `:-` also covers a variable that is set but empty."""
    found = _VARIABLE.fullmatch(body)
    if found is None or "${" in body:
        raise InterpolationError("expected ${VAR}, ${VAR:-default} or ${file:PATH}, not nested")
    name = found.group("name")
    if found.group("fallback") is not None:
        return env.get(name) or found.group("default")
    if name not in env:
        raise InterpolationError(f"environment variable {name} is not set (${{{name}:-default}} allows that)")
    return env[name]


def _load_text(name: str, folder: Path) -> str:
    """The content without its trailing line ends, as `$(cat PATH)` gives it."""
    if not name:
        raise InterpolationError("${file:} names no file")
    try:
        with (folder / name).open("rb") as source:
            content = source.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        raise InterpolationError(f"cannot read file {name!r}: {reason}") from error
    if len(content) > MAX_FILE_BYTES:
        raise InterpolationError(f"file {name!r} is larger than {MAX_FILE_BYTES} bytes")
    try:
        return content.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        # The cause would show the content.
        raise InterpolationError(f"file {name!r} is not UTF-8 text") from None
