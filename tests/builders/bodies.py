"""Bodies that are read beside no other one."""

from gateway.conversations.reading import NewBody, Received, read
from gateway.wire.format import Format


def read_alone(owner: str, wire_format: Format, data: bytes) -> Received:
    return read(NewBody(owner, wire_format, data))
