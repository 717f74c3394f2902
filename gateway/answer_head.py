"""The first lines of an answer on its way to the client, as bytes: what upstream wrote passes as it stands.

No library would write bytes that are no text, and RFC 9110 §5.5 allows them in values.
"""

from collections.abc import Mapping
from typing import Final

from gateway.header_text import CONTROL

CONTENT_ENCODING: Final = b"content-encoding"
CONTENT_LENGTH: Final = b"content-length"
# CR and LF among them: each line has one of either, at its end.
_CONTROL: Final = bytes(byte for byte in range(256) if byte in b"\r\n" or CONTROL.match(chr(byte)))


# A header's name in lower case, and its line as it goes out, with the line's end.
Field = tuple[bytes, bytes]


class AnswerHead:
    def __init__(self, status: int, reason: str, fields: list[Field]) -> None:
        """Takes the list over."""
        self.status = status
        self.reason = reason
        self._fields = fields
        self._own: list[str] = []

    def has(self, name: bytes) -> bool:
        """name: in lower case."""
        return name in [own for own, _ in self._fields]

    def drop(self, name: bytes) -> None:
        """name: in lower case."""
        self._fields = [field for field in self._fields if field[0] != name]

    def add(self, headers: Mapping[str, str]) -> None:
        """Of our own: never looked for or dropped again."""
        self._own += [f"{name}: {value}\r\n" for name, value in headers.items()]

    def render(self, version: tuple[int, int]) -> bytes:
        """A space takes the place of each control character (RFC 9110 §5.5)."""
        own = [f"HTTP/{version[0]}.{version[1]} {self.status} {self.reason}\r\n", *self._own]
        fields = [line for _, line in self._fields]
        text = b"".join(["".join(own).encode("utf-8", "surrogateescape"), *fields])
        if len(text) - len(text.translate(None, _CONTROL)) != 2 * (len(own) + len(fields)):
            lines = [line.encode("utf-8", "surrogateescape") for line in own]
            text = b"".join(map(_without_control, [*lines, *fields]))
        return text + b"\r\n"


def make_fields(headers: Mapping[str, str]) -> list[Field]:
    """Of text, which need not be ASCII."""
    return [
        (name.lower().encode(), f"{name}: {value}\r\n".encode("utf-8", "surrogateescape"))
        for name, value in headers.items()
    ]


def _without_control(line: bytes) -> bytes:
    text = line[:-2].decode("utf-8", "surrogateescape")
    return CONTROL.sub(" ", text).encode("utf-8", "surrogateescape") + b"\r\n"
