"""Content codings of HTTP: decodes a compressed body, cut anywhere.

gzip (RFC 1952, several members), deflate (zlib, or raw as some servers send it), br, zstd (several frames),
and lists of them. Every output is bounded, because a few bytes may decode to gigabytes.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import brotli
import zstandard

# The most that one call of `feed` may return. 64 KB of a compressed event stream decode to a few MB at most.
MAX_FEED_BYTES = 64 * 1024 * 1024
# A body with more codings is an attack.
MAX_CODINGS = 4
# RFC 9659: a zstd content coding needs a window of at most 8 MB.
_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
_GZIP_OR_ZLIB = {"gzip": zlib.MAX_WBITS | 16, "zlib": zlib.MAX_WBITS, "raw": -zlib.MAX_WBITS}


class DecodeError(ValueError):
    """The bytes do not match the content coding, or decode to too many."""


class Decoder(Protocol):
    def feed(self, data: bytes) -> bytes:
        """Everything that can be decoded so far. Raises DecodeError."""
        ...

    def finish(self) -> bytes:
        """The rest. Raises DecodeError if the data broke off; no data at all is no error."""
        ...


def make_decoder(content_encoding: str, *, max_feed_bytes: int = MAX_FEED_BYTES) -> Decoder | None:
    """content_encoding: the value of the header. None for an unknown coding."""
    names = [name.strip().lower() for name in content_encoding.split(",")]
    names = [name for name in names if name not in ("", "identity")]
    if len(names) > MAX_CODINGS or not all(name in _CODINGS for name in names):
        return None
    # Codings are listed in the order of their application (RFC 9110 §8.4), so the last is decoded first.
    return _Chain([_CODINGS[name](max_feed_bytes) for name in reversed(names)])


def decode_body(data: bytes, content_encoding: str, max_bytes: int) -> bytes:
    """Decodes a whole body. Raises DecodeError: unknown coding, broken data, or more than `max_bytes`."""
    decoder = make_decoder(content_encoding, max_feed_bytes=max_bytes)
    if decoder is None:
        raise DecodeError(f"unknown content encoding {content_encoding[:80]!r}")
    plain = decoder.feed(data) + decoder.finish()
    if len(plain) > max_bytes:
        raise _too_long(max_bytes)
    return plain


class _Chain:
    """Decoders one after the other; without any, the bytes stay as they are."""

    def __init__(self, decoders: Sequence[Decoder]) -> None:
        self._decoders = decoders

    def feed(self, data: bytes) -> bytes:
        for decoder in self._decoders:
            data = decoder.feed(data)
        return data

    def finish(self) -> bytes:
        rest = b""
        for decoder in self._decoders:
            rest = decoder.feed(rest) + decoder.finish()
        return rest


class _Coding:
    """One coding. Cuts its input into small slices, so that no step can return much more than `room`."""

    # Also limits how often the bytes after a tiny gzip member are copied.
    slice_bytes = 16 * 1024

    def __init__(self, max_feed_bytes: int) -> None:
        self._max_feed_bytes = max_feed_bytes
        self._has_begun = False

    def feed(self, data: bytes) -> bytes:
        parts: list[bytes] = []
        room = self._max_feed_bytes
        self._has_begun = self._has_begun or bool(data)
        with _mapped_errors():
            for start in range(0, len(data), self.slice_bytes):
                part = self._decode(data[start : start + self.slice_bytes], room)
                room -= len(part)
                if room < 0:
                    raise _too_long(self._max_feed_bytes)
                parts.append(part)
        return b"".join(parts)

    def finish(self) -> bytes:
        with _mapped_errors():
            if self._has_begun and not self._is_at_end():
                raise DecodeError("compressed data broke off")
        return b""

    def _decode(self, data: bytes, room: int) -> bytes:
        """All output for `data`, or at least one byte more than `room`."""
        raise NotImplementedError

    def _is_at_end(self) -> bool:
        raise NotImplementedError


class _Gzip(_Coding):
    def __init__(self, max_feed_bytes: int) -> None:
        super().__init__(max_feed_bytes)
        self._member = zlib.decompressobj(_GZIP_OR_ZLIB["gzip"])

    def _decode(self, data: bytes, room: int) -> bytes:
        parts: list[bytes] = []
        while data and room >= 0:
            if self._member.eof:
                # gzip(1) allows zeros after a member. Any other byte begins the next member.
                data = data.lstrip(b"\0")
                self._member = zlib.decompressobj(_GZIP_OR_ZLIB["gzip"]) if data else self._member
            part = self._member.decompress(data, room + 1)
            room -= len(part)
            parts.append(part)
            data = self._member.unused_data if data else b""
        return b"".join(parts)

    def _is_at_end(self) -> bool:
        return self._member.eof


class _Deflate(_Coding):
    """zlib as RFC 9110 requires, or the raw stream that some servers send under this name."""

    def __init__(self, max_feed_bytes: int) -> None:
        super().__init__(max_feed_bytes)
        self._head = b""
        self._stream = zlib.decompressobj(_GZIP_OR_ZLIB["zlib"])

    def _decode(self, data: bytes, room: int) -> bytes:
        if len(self._head) < 2:
            self._head += data
            if len(self._head) < 2:
                return b""
            data = self._head
            shape = "zlib" if _is_zlib_header(data) else "raw"
            self._stream = zlib.decompressobj(_GZIP_OR_ZLIB[shape])
        elif self._stream.eof and data:
            raise DecodeError("data after the end of the deflate stream")
        return self._stream.decompress(data, room + 1)

    def _is_at_end(self) -> bool:
        return self._stream.eof


class _Brotli(_Coding):
    def __init__(self, max_feed_bytes: int) -> None:
        super().__init__(max_feed_bytes)
        self._stream = brotli.Decompressor()

    def _decode(self, data: bytes, room: int) -> bytes:
        parts = [self._stream.process(data, output_buffer_limit=room + 1)]
        room -= len(parts[0])
        while room >= 0 and not self._stream.can_accept_more_data():
            parts.append(self._stream.process(b"", output_buffer_limit=room + 1))
            room -= len(parts[-1])
        return b"".join(parts)

    def _is_at_end(self) -> bool:
        return bool(self._stream.is_finished())


class _Zstd(_Coding):
    # zstandard cannot bound its output. Four bytes of input may decode to 128 KB, so a slice to at most 8 MB.
    slice_bytes = 256

    def __init__(self, max_feed_bytes: int) -> None:
        super().__init__(max_feed_bytes)
        self._context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._frame = self._context.decompressobj()

    def _decode(self, data: bytes, room: int) -> bytes:
        parts: list[bytes] = []
        while data:
            if self._frame.eof:
                self._frame = self._context.decompressobj()
            parts.append(self._frame.decompress(data))
            data = self._frame.unused_data if self._frame.eof else b""
        return b"".join(parts)

    def _is_at_end(self) -> bool:
        return self._frame.eof


_CODINGS: dict[str, Callable[[int], Decoder]] = {
    "gzip": _Gzip,
    "x-gzip": _Gzip,
    "deflate": _Deflate,
    "br": _Brotli,
    "zstd": _Zstd,
}


def _is_zlib_header(data: bytes) -> bool:
    """RFC 1950 §2.2: method 8, and both bytes together divisible by 31."""
    return data[0] & 0x0F == 8 and (data[0] * 256 + data[1]) % 31 == 0


def _too_long(max_bytes: int) -> DecodeError:
    return DecodeError(f"more than {max_bytes} bytes when decoded")


@contextmanager
def _mapped_errors() -> Iterator[None]:
    try:
        yield
    except (zlib.error, brotli.error, zstandard.ZstdError) as error:
        raise DecodeError(str(error)) from error
