"""Halves of surrogate pairs in JSON: what JavaScript writes when it cuts a text inside an emoji.

Valid JSON to most servers, unreadable to ours. A copy that can be read has the same length, so that places
found in it hold for the original, which is what is sent on.
"""

import re
from typing import Final

# After an even number of backslashes: a whole pair, which stays, or one half.
_SURROGATES: Final = re.compile(
    rb"(?<!\\)((?:\\\\)*)"
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD]([89a-fA-F])[0-9a-fA-F]{2})"
)
_HALVES: Final = b"89abcdef"


def mend_surrogates(data: bytes) -> bytes:
    """Each half as a character for private use of its own (U+E000 to U+E7FF); the same object without any."""
    if b"\\ud" not in data and b"\\uD" not in data:
        return data
    mended = _SURROGATES.sub(_mend, data)
    return data if mended == data else mended


def _mend(found: re.Match[bytes]) -> bytes:
    before, escape, half = found.groups()
    if half is None:
        return found[0]
    return b"%s\\ue%d%s" % (before, _HALVES.index(half.lower()), escape[4:])
