"""What an upstream may do wrong, as bytes and an ending, and what a client may see of it."""

from dataclasses import dataclass
from typing import Final, Literal

from tests.toy.raw import Ending, render_answer

# What no log may show, and no other request may get.
SECRET: Final = b"s3cret"
BODY: Final = b'data: {"text":"' + SECRET + b'"}\n\n'
# whole: as it came · error: a 502 or 504 of the gateway · broken: begun, and visibly not ended
Sight = Literal["whole", "error", "broken"]
_LINE: Final = b"HTTP/1.1 200 OK"
_TYPE: Final = b"Content-Type: text/event-stream\r\n"
_CHUNK: Final = b"%x\r\n%b\r\n" % (len(BODY), BODY)
_LAST: Final = b"0\r\n\r\n"


@dataclass(frozen=True)
class Fault:
    """sights: what a client may see. status: of the response, if a client may see it whole."""

    name: str
    kind: str
    data: bytes
    ending: Ending
    sights: tuple[Sight, ...]
    body: bytes = BODY
    status: int = 200


def _head(*lines: bytes, line: bytes = _LINE) -> bytes:
    return b"\r\n".join([line, *lines]) + b"\r\n" + _TYPE + b"\r\n"


def _length(*lines: bytes, line: bytes = _LINE, body: bytes = BODY) -> bytes:
    return _head(b"Content-Length: %d" % len(BODY), *lines, line=line) + body


def _chunked(body: bytes, *lines: bytes) -> bytes:
    return _head(b"Transfer-Encoding: chunked", *lines) + body


# No response at all, or something that is none.
_NOTHING: Final[dict[str, bytes]] = {
    "nothing": b"",
    "half a status line": b"HTTP/1.1 2",
    "half a head": b"HTTP/1.1 200 OK\r\nX-A: " + SECRET,
    "a text": b"the model says " + SECRET + b"\r\n\r\n",
    "json": b'{"a":"' + SECRET + b'"}',
    "http/0.9": b"HTTP/0.9 200 OK\r\n\r\n" + BODY,
    "http/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "http/2 settings": b"\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "a tls alert": b"\x15\x03\x01\x00\x02\x02\x46",
    "interim responses only": b"HTTP/1.1 100 Continue\r\n\r\n" * 3,
}
# Heads that must not be passed on. The connection stays open, so nothing but the head can tell.
_HEADS: Final[dict[str, bytes]] = {
    "an unasked 101": b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + BODY,
    "a 101 with upgrade": _head(b"Connection: upgrade\r\nUpgrade: x", line=b"HTTP/1.1 101 X") + BODY,
    "status 000": _length(line=b"HTTP/1.1 000 Odd"),
    "status 099": _length(line=b"HTTP/1.1 099 Odd"),
    "status 99": _length(line=b"HTTP/1.1 99 Odd"),
    "status 2000": _length(line=b"HTTP/1.1 2000 Odd"),
    "status 2x0": _length(line=b"HTTP/1.1 2x0 Odd"),
    "version 2.0": _length(line=b"HTTP/2.0 200 OK"),
    "version 1.2": _length(line=b"HTTP/1.2 200 OK"),
    "another protocol": _length(line=b"ICY 200 OK"),
    "a space before a colon": _length(b"X-A : b"),
    "a length with a space": _head(b"Content-Length : %d" % len(BODY)) + BODY,
    "chunked with a space": _head(b"Transfer-Encoding : chunked") + _CHUNK + _LAST,
    "a line without colon": _length(b"X-A"),
    "a name with a control": _length(b"X\x01: b"),
    "a nul in a value": _length(b"X-A: b\x00c"),
    "a return in a value": _length(b"X-A: b\rX-B: c"),
    "two lengths": _length(b"Content-Length: 1"),
    "a list of lengths": _head(b"Content-Length: 2, 2") + BODY,
    "a negative length": _head(b"Content-Length: -2") + BODY,
    "a signed length": _head(b"Content-Length: +2") + BODY,
    "an empty length": _head(b"Content-Length:") + BODY,
    "a length beyond 64 bits": _head(b"Content-Length: " + b"9" * 30) + BODY,
    "a length of 64 ones": _head(b"Content-Length: 18446744073709551615") + BODY,
    "length and chunks": _length(b"Transfer-Encoding: chunked"),
    "chunks and length": _chunked(_CHUNK + _LAST, b"Content-Length: %d" % len(BODY)),
    "gzip, chunked": _head(b"Transfer-Encoding: gzip, chunked") + _CHUNK + _LAST,
    "chunked, gzip": _head(b"Transfer-Encoding: chunked, gzip") + _CHUNK + _LAST,
    "chunked twice": _chunked(_CHUNK + _LAST, b"Transfer-Encoding: chunked"),
    "an unknown coding": _head(b"Transfer-Encoding: xchunked") + _CHUNK + _LAST,
    "a huge head": _length(*[b"X-%d: %b" % (n, b"y" * 60_000) for n in range(6)]),
    "a huge header": _length(b"X-A: " + b"y" * 70_000),
    "too many headers": _length(*[b"X-%d: y" % n for n in range(300)]),
    "a huge reason": _length(line=_LINE + b"y" * 70_000),
}
# Bodies that do not end as their heads say.
_CUTS: Final[dict[str, bytes]] = {
    "less than its length": _head(b"Content-Length: 999") + BODY,
    "no last chunk": _chunked(_CHUNK),
    "half a chunk": _chunked(_CHUNK[:-9]),
    "half a last chunk": _chunked(_CHUNK + b"0\r\n"),
    "a broken gzip": _head(b"Transfer-Encoding: chunked\r\nContent-Encoding: gzip") + _CHUNK[:-9],
}
_CHUNKS: Final[dict[str, bytes]] = {
    "a chunk of no size": _chunked(_CHUNK + b"size\r\n"),
    "a negative chunk": _chunked(_CHUNK + b"-2\r\n"),
    "a chunk beyond 64 bits": _chunked(_CHUNK + b"f" * 17 + b"\r\n"),
    "a chunk of 64 ones": _chunked(_CHUNK + b"f" * 16 + b"\r\n"),
    "a chunk longer than its size": _chunked(b"2\r\n" + BODY + b"\r\n" + _LAST),
    "a huge trailer": _chunked(_CHUNK + b"0\r\nX-T: " + b"y" * 70_000),
    "many trailers": _chunked(_CHUNK + b"0\r\n" + b"X-T: y\r\n" * 3_000),
}
# More than a response. What follows belongs to no one.
_MORE: Final[dict[str, bytes]] = {
    "bytes behind a length": _length() + b"late " + SECRET,
    "bytes behind chunks": _chunked(_CHUNK + _LAST) + b"late " + SECRET,
    "a second response": _length() + render_answer(SECRET),
    "half a second response": _length() + b"HTTP/1.1 2",
    "a second one behind chunks": _chunked(_CHUNK + _LAST) + render_answer(SECRET),
}
# Odd, and clear.
_CLEAR: Final[dict[str, bytes]] = {
    "a thousand interim responses": b"HTTP/1.1 103 Early\r\n\r\n" * 1_000 + _length(),
    "an empty line first": b"\r\n" + _length(),
    "no reason": _length(line=b"HTTP/1.1 200"),
    "version 1.0": _length(line=b"HTTP/1.0 200 OK"),
    "two interim responses": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\n\r\n" + _length(),
    "a folded header": _length(b"X-A: b\r\n c"),
    "bare line feeds": _length().replace(b"\r\n", b"\n"),
    "an upgrade offer": _length(b"Connection: upgrade\r\nUpgrade: h2c"),
    "a chunk extension": _chunked(_CHUNK.replace(b"\r\n", b";a=b\r\n", 1) + _LAST),
    "a trailer": _chunked(_CHUNK + b"0\r\nX-T: 1\r\n\r\n"),
    "a line feed behind it": _length() + b"\r\n",
}


def list_faults() -> list[Fault]:
    faults = []
    endings: tuple[Ending, ...] = ("close", "reset", "hang")
    for ending in endings:
        faults += [Fault(name, "nothing", data, ending, ("error",)) for name, data in _NOTHING.items()]
        # What came in one piece with the head fails before the head is passed on.
        cut: tuple[Sight, ...] = ("broken", "error")
        faults += [Fault(name, "cut", data, ending, cut) for name, data in _CUTS.items()]
    faults += [Fault(name, "head", data, "stay", ("error",)) for name, data in _HEADS.items()]
    faults += [Fault(name, "chunks", data, "hang", ("broken", "error")) for name, data in _CHUNKS.items()]
    faults += [Fault(name, "more", data, "stay", ("whole", "error")) for name, data in _MORE.items()]
    faults += [Fault(name, "clear", data, "stay", ("whole",)) for name, data in _CLEAR.items()]
    faults += [
        Fault("no length, closed", "unframed", _head() + BODY, "close", ("whole",)),
        Fault("no length, reset", "unframed", _head() + BODY, "reset", ("broken", "error")),
        Fault("no length, silent", "unframed", _head() + BODY, "hang", ("broken", "error")),
        Fault("status 999", "status", _length(line=b"HTTP/1.1 999 Odd"), "stay", ("whole",), status=999),
        Fault(
            "a 204 with a body",
            "status",
            _length(line=b"HTTP/1.1 204 No Content"),
            "stay",
            ("whole", "error"),
            b"",
            204,
        ),
    ]
    return faults
