"""How long a client has not read what it was sent."""

import asyncio
import fcntl
import struct
import termios


class UnreadBytes:
    """Of one connection. Is asked now and then."""

    def __init__(self) -> None:
        # What was unread when last asked, and when the client last read something, as far as was seen.
        self._size_bytes = 0
        self._read_seconds = 0.0

    def count_seconds(self, line: asyncio.Transport, now_seconds: float, *, may_grow: bool) -> float:
        """The time since the client last read something; 0 if all that the gateway holds has been sent.

        may_grow: more has been written meanwhile, so that nothing can be told of the client.
        """
        unsent = line.get_write_buffer_size()
        unread = unsent + _count_unacknowledged(line) if unsent else 0
        if not unread or unread != self._size_bytes or may_grow:
            self._size_bytes, self._read_seconds = unread, now_seconds
        return now_seconds - self._read_seconds


def _count_unacknowledged(line: asyncio.Transport) -> int:
    """Bytes that the system still has to send. A client that reads slowly lets this shrink first."""
    socket = line.get_extra_info("socket")
    if socket is None:
        return 0
    try:
        return int(struct.unpack("i", fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
    except OSError:
        return 0
