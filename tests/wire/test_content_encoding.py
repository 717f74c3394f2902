import gzip
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.content_encoding import DecodeError, decode_body, make_decoder


def _raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


_CASES: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("", bytes),
    ("identity", bytes),
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("GZip", gzip.compress),
    ("gzip", lambda data: gzip.compress(data[:5]) + gzip.compress(data[5:])),
    ("gzip", lambda data: gzip.compress(data) + b"\0" * 20),
    ("deflate", zlib.compress),
    ("deflate", _raw_deflate),
    ("br", brotli.compress),
    ("zstd", zstandard.compress),
    ("zstd", lambda data: zstandard.compress(data[:5]) + zstandard.compress(data[5:])),
    ("zstd", lambda data: b"\x50\x2a\x4d\x18\x01\0\0\0x" + zstandard.compress(data)),
    ("gzip, br", lambda data: brotli.compress(gzip.compress(data))),
    ("deflate,identity,  zstd", lambda data: zstandard.compress(zlib.compress(data))),
]
_PACKED = [case for case in _CASES if case[1] is not bytes]
cases = pytest.mark.parametrize(("encoding", "pack"), _CASES)
packed = pytest.mark.parametrize(("encoding", "pack"), _PACKED)


def _decode(encoding: str, *chunks: bytes) -> bytes:
    decoder = make_decoder(encoding)
    assert decoder is not None
    plain = b"".join([piece for chunk in chunks for piece in decoder.feed(chunk)])
    decoder.finish()
    return plain


@cases
@given(plain=st.binary(max_size=2000), cut=st.integers(0, 2000))
def test_cuts_between_chunks_never_matter(
    encoding: str, pack: Callable[[bytes], bytes], plain: bytes, cut: int
) -> None:
    body = pack(plain)
    assert _decode(encoding, body) == plain
    assert _decode(encoding, body[:cut], body[cut:]) == plain


@cases
def test_one_byte_at_a_time_can_be_decoded(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    plain = b"data: hello\n\n" * 50
    assert _decode(encoding, *[bytes([byte]) for byte in pack(plain)]) == plain


@packed
def test_bytes_before_a_break_come_before_the_error(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    plain = bytes(range(256)) * 40
    decoder = make_decoder(encoding)
    assert decoder is not None
    assert plain.startswith(b"".join(decoder.feed(pack(plain).rstrip(b"\0")[:-3])))
    with pytest.raises(DecodeError):
        decoder.finish()


@packed
def test_a_decompression_bomb_is_refused(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    bomb = pack(bytes(9_000_000))
    with pytest.raises(DecodeError):
        decode_body(bomb, encoding, 1_000_000)
    assert len(decode_body(bomb, encoding, 9_000_000)) == 9_000_000


@cases
def test_the_bound_is_exact(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    assert decode_body(pack(b"x" * 100), encoding, 100) == b"x" * 100
    with pytest.raises(DecodeError):
        decode_body(pack(b"x" * 101), encoding, 100)


@packed
@given(junk=st.binary(min_size=1, max_size=300))
def test_invalid_bytes_raise_a_decode_error(
    encoding: str, pack: Callable[[bytes], bytes], junk: bytes
) -> None:
    for body in (junk, pack(b"hello" * 20)[:-4] + junk, pack(b"hello") + junk):
        try:
            assert len(decode_body(body, encoding, 10_000)) <= 10_000
        except DecodeError:
            pass


@packed
def test_an_empty_body_is_empty(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    assert decode_body(b"", encoding, 10) == b""


@pytest.mark.parametrize("encoding", ["compress", "aws-chunked", "gzip, rot13", ", ".join(["gzip"] * 5)])
def test_unknown_codings_and_long_lists_have_no_decoder(encoding: str) -> None:
    assert make_decoder(encoding) is None
    with pytest.raises(DecodeError):
        decode_body(b"x", encoding, 10)
