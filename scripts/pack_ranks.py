"""Rebuild gateway/data/o200k_base.tiktoken.xz from a wheel on PyPI that ships the rank file.

    python scripts/pack_ranks.py

The file's hash is the one that the tiktoken package itself expects, so it does not matter whose wheel it was.
"""

import base64
import hashlib
import lzma
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llama-index-core==0.14.25"
# tiktoken's cache names a file by the SHA-1 of its address.
MEMBER = "llama_index/core/_static/tiktoken_cache/fb374d419588a4632f3f557e76b4b70aebbca790"
# tiktoken_ext/openai_public.py, o200k_base, expected_hash.
SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
TARGET = Path(__file__).parent.parent / "gateway" / "data" / "o200k_base.tiktoken.xz"


def main() -> None:
    ranks = load_member(WHEEL, MEMBER)
    if hashlib.sha256(ranks).hexdigest() != SHA256:
        sys.exit(f"{MEMBER} in {WHEEL} is not the o200k_base file that tiktoken expects")
    TARGET.write_bytes(pack(parse_ranks(ranks)))
    print(f"{TARGET.name}: {TARGET.stat().st_size} bytes")


def load_member(requirement: str, member: str) -> bytes:
    """One file out of a wheel, which pip fetches (and forgets again)."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "--dest", folder, requirement], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(member)


def parse_ranks(text: bytes) -> list[bytes]:
    """Lines of `base64 rank`; the ranks are consecutive from 0, so their order says it all."""
    rows = [line.split() for line in text.splitlines()]
    if [int(rank) for _, rank in rows] != list(range(len(rows))):
        sys.exit("the ranks are not consecutive")
    return [base64.b64decode(token) for token, _ in rows]


def pack(tokens: list[bytes]) -> bytes:
    """Lengths first, then the tokens: xz makes 2 % less of it than of length-prefixed tokens."""
    lengths = bytes(len(token) for token in tokens)
    return lzma.compress(lengths + b"".join(tokens), preset=9 | lzma.PRESET_EXTREME)


if __name__ == "__main__":
    main()
