"""Has the C library give the memory of large bodies back to the system as soon as they are freed.

glibc raises its own thresholds whenever a large block is freed, up to 32 MB. From then on bodies come from
the heap, where a small block behind one keeps all of it: after three rounds of twelve requests of 20 MB a
gateway kept 640 MB, and 216 MB with fixed thresholds. See mallopt(3). Other C libraries stay as they are.
"""

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
# Usual bodies are smaller, and for them the heap is faster.
_MMAP_BYTES: Final = 1 << 20
# Free memory at the end of the heap that is kept for the next requests.
_TRIM_BYTES: Final = 16 << 20


def return_freed_memory() -> bool:
    """For the whole process, from now on. False where the C library has no such settings."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(set_option(_M_MMAP_THRESHOLD, _MMAP_BYTES)) and bool(
        set_option(_M_TRIM_THRESHOLD, _TRIM_BYTES)
    )
