"""Content codings of HTTP: decodes a compressed body, cut anywhere, in small steps.

gzip (RFC 1952, several members), deflate (zlib, or raw as some servers send it), br, zstd (several frames),
and lists of them. A few bytes may decode to gigabytes, so decoders return iterators: each step does little
work and gives little output, and the caller decides whether to go on.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import brotli
import zstandard

# The most that one step returns.
STEP_BYTES: Final = 64 * 1024
# A body with more codings is an attack.
MAX_CODINGS: Final = 4
# RFC 9659: a zstd content coding needs a window of at most 8 MB.
_ZSTD_WINDOW_BYTES: Final = 8 * 1024 * 1024
_GZIP_OR_ZLIB: Final = {"gzip": zlib.MAX_WBITS | 16, "zlib": zlib.MAX_WBITS, "raw": -zlib.MAX_WBITS}
# Limits how often the bytes after a tiny gzip member, or after a full step, are copied.
_SLICE_BYTES: Final = 16 * 1024
# zstandard cannot bound its output. Four bytes of input may decode to 128 KB, so a slice to at most 2 MB,
# which is given in steps.
_ZSTD_SLICE_BYTES: Final = 64
# To begin a member takes as long as decoding so many bytes. A body within its bound may have a thousand.
_MEMBER_BYTES: Final = 1_024
_FREE_WORK_BYTES: Final = 1 << 20


class DecodeError(ValueError):
    """The bytes do not match the content coding, or decode to too many."""


class DecodedTooLarge(DecodeError):
    """They decode to too many. The message says so, and can be shown."""


class Decoder:
    """Codings one after the other; without any, the bytes stay as they are."""

    def __init__(self, codings: Sequence["_Coding"]) -> None:
        self._codings = codings
        # The bytes stay as they are.
        self.is_identity = not codings

    @property
    def work_bytes(self) -> int:
        """The output so far, of the coding that gave most: an inner one may give far more than the last.

        Each member counts for some more, because a body may consist of empty ones.
        """
        return max((coding.decoded_bytes + coding.extra_bytes for coding in self._codings), default=0)

    @property
    def window_bytes(self) -> int:
        """The most memory that decoding takes, whatever comes. A bomb fills it with its first bytes."""
        return sum(coding.window_bytes for coding in self._codings)

    @property
    def held_bytes(self) -> int:
        """The memory that it takes now, unless the data is a bomb. Windows grow with the output."""
        return sum(min(2 * coding.decoded_bytes, coding.window_bytes) for coding in self._codings)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Everything that can be decoded so far, in steps of at most `STEP_BYTES`, some of them empty.

        Exhaust it before the next call. It raises DecodeError.
        """
        pieces = _cut(data)
        for coding in self._codings:
            pieces = coding.decode(pieces)
        return pieces

    def finish(self) -> None:
        """Raises DecodeError if the data broke off; no data at all is no error."""
        for coding in self._codings:
            coding.finish()


# Without a coding it has no state.
_IDENTITY: Final = Decoder(())


def make_decoder(content_encoding: str) -> Decoder | None:
    """content_encoding: the value of the header, mostly empty. None for an unknown coding."""
    if not content_encoding:
        return _IDENTITY
    names = [name.strip().lower() for name in content_encoding.split(",")]
    names = [name for name in names if name not in ("", "identity")]
    if len(names) > MAX_CODINGS or not all(name in _CODINGS for name in names):
        return None
    # Codings are listed in the order of their application (RFC 9110 §8.4), so the last is decoded first.
    return Decoder([_CODINGS[name]() for name in reversed(names)])


def decode_body(data: bytes, content_encoding: str, max_bytes: int) -> bytes:
    """Decodes a whole body at once, so `max_bytes` should be small, or this should run in a thread.

    Raises DecodeError: unknown coding, broken data, or more than `max_bytes`.
    """
    decoder = make_decoder(content_encoding)
    if decoder is None:
        raise DecodeError(f"unknown content encoding {content_encoding[:80]!r}")
    return b"".join(decode_in_steps(decoder, data, max_bytes))


def decode_in_steps(decoder: Decoder, data: bytes, max_bytes: int) -> Iterator[bytes]:
    """A whole body, in steps of at most `STEP_BYTES`, some of them empty. Raises DecodeError as above."""
    size = 0
    for piece in decoder.feed(data):
        size += len(piece)
        if size > max_bytes or decoder.work_bytes > max_bytes + _FREE_WORK_BYTES:
            raise DecodedTooLarge(f"more than {max_bytes} bytes when decoded")
        yield piece
    decoder.finish()


class _Coding:
    """One coding."""

    # The earlier output that it may refer to.
    window_bytes = 32 * 1024

    def __init__(self) -> None:
        self.decoded_bytes = 0
        self.extra_bytes = 0
        self._has_begun = False

    def decode(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """A step for each piece at least, so that the caller is heard even if nothing comes of them."""
        with _mapped_errors():
            for piece in pieces:
                yield b""
                if not piece:
                    continue
                self._has_begun = True
                for part in self._decode(piece):
                    self.decoded_bytes += len(part)
                    yield part

    def finish(self) -> None:
        if self._has_begun and not self._is_at_end():
            raise DecodeError("compressed data broke off")

    def _decode(self, data: bytes) -> Iterator[bytes]:
        """All output for `data`, in steps."""
        raise NotImplementedError

    def _is_at_end(self) -> bool:
        raise NotImplementedError


class _Zlib(_Coding):
    """What is common to the codings of zlib."""

    def __init__(self) -> None:
        super().__init__()
        self._stream = zlib.decompressobj(_GZIP_OR_ZLIB["gzip"])

    def _inflate(self, data: bytes) -> Iterator[bytes]:
        """Up to the end of the stream; what is behind that is the stream's `unused_data`."""
        part = b""
        while (data or len(part) == STEP_BYTES) and not self._stream.eof:
            part = self._stream.decompress(data, STEP_BYTES)
            data = self._stream.unconsumed_tail
            yield part

    def _is_at_end(self) -> bool:
        return self._stream.eof


class _Gzip(_Zlib):
    def _decode(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _SLICE_BYTES):
            rest = data[start : start + _SLICE_BYTES]
            # Between two members gzip(1) allows zeros; other bytes are a member.
            while rest := rest.lstrip(b"\0") if self._stream.eof else rest:
                if self._stream.eof:
                    self._stream = zlib.decompressobj(_GZIP_OR_ZLIB["gzip"])
                    self.extra_bytes += _MEMBER_BYTES
                yield from self._inflate(rest)
                rest = self._stream.unused_data


class _Deflate(_Zlib):
    """zlib as RFC 9110 requires, or the raw stream that some servers send under this name."""

    def __init__(self) -> None:
        super().__init__()
        self._head = b""

    def _decode(self, data: bytes) -> Iterator[bytes]:
        if len(self._head) < 2:
            self._head += data
            if len(self._head) < 2:
                return
            data = self._head
            shape = "zlib" if _is_zlib_header(data) else "raw"
            self._stream = zlib.decompressobj(_GZIP_OR_ZLIB[shape])
        for start in range(0, len(data), _SLICE_BYTES):
            if self._stream.eof:
                raise DecodeError("data after the end of the deflate stream")
            yield from self._inflate(data[start : start + _SLICE_BYTES])


class _Brotli(_Coding):
    # Its library fills the whole window before it gives the first byte.
    window_bytes = 1 << 24

    def __init__(self) -> None:
        super().__init__()
        self._stream = brotli.Decompressor()

    def _decode(self, data: bytes) -> Iterator[bytes]:
        part = self._stream.process(data, output_buffer_limit=STEP_BYTES)
        yield from _cut(part)
        # What is left may be input or output; `can_accept_more_data` knows of the first only.
        while (part or not self._stream.can_accept_more_data()) and not self._stream.is_finished():
            part = self._stream.process(b"", output_buffer_limit=STEP_BYTES)
            yield from _cut(part)

    def _is_at_end(self) -> bool:
        return bool(self._stream.is_finished())


class _Zstd(_Coding):
    window_bytes = _ZSTD_WINDOW_BYTES

    def __init__(self) -> None:
        super().__init__()
        self._context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._frame = self._context.decompressobj()

    def _decode(self, data: bytes) -> Iterator[bytes]:
        parts: list[bytes] = []
        size = 0
        for start in range(0, len(data), _ZSTD_SLICE_BYTES):
            rest = data[start : start + _ZSTD_SLICE_BYTES]
            while rest:
                if self._frame.eof:
                    self._frame = self._context.decompressobj()
                    self.extra_bytes += _MEMBER_BYTES
                parts.append(self._frame.decompress(rest))
                size += len(parts[-1])
                rest = self._frame.unused_data if self._frame.eof else b""
            if size >= STEP_BYTES:
                yield from _cut(b"".join(parts))
                parts, size = [], 0
        yield from _cut(b"".join(parts))

    def _is_at_end(self) -> bool:
        return self._frame.eof


_CODINGS: Final[dict[str, Callable[[], _Coding]]] = {
    "gzip": _Gzip,
    "x-gzip": _Gzip,
    "deflate": _Deflate,
    "br": _Brotli,
    "zstd": _Zstd,
}


def _cut(data: bytes) -> Iterator[bytes]:
    if len(data) <= STEP_BYTES:
        yield data
        return
    for start in range(0, len(data), STEP_BYTES):
        yield data[start : start + STEP_BYTES]


def _is_zlib_header(data: bytes) -> bool:
    """RFC 1950 §2.2: method 8, and both bytes together divisible by 31."""
    return data[0] & 0x0F == 8 and (data[0] * 256 + data[1]) % 31 == 0


@contextmanager
def _mapped_errors() -> Iterator[None]:
    try:
        yield
    except (zlib.error, brotli.error, zstandard.ZstdError) as error:
        raise DecodeError(str(error)) from error
