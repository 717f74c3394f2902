"""What an operator reads if a port cannot be opened."""

import errno
import os
import socket

import pytest

from gateway.downstream.bind_errors import describe_bind_error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EADDRINUSE, "x"), "port 80 on 10.0.0.1 is in use, perhaps by another gateway: choose"),
        (PermissionError(errno.EACCES, "x"), "may not be opened by user"),
        (OSError(errno.EADDRNOTAVAIL, "x"), "10.0.0.1 is not an address of this machine"),
        (socket.gaierror(socket.EAI_NONAME, "x"), "10.0.0.1 is not an address of this machine"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "cannot be opened (Too many open files)"),
    ],
)
def test_each_error_names_its_fix(error: OSError, expected: str) -> None:
    text = describe_bind_error("10.0.0.1", 80, error, "--admin-port")
    assert expected in text
    assert "--admin-port N" in text or "0.0.0.0" in text
