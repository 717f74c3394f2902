"""Why a port could not be opened, and what to do about it, for the operator."""

import errno
import os
import socket


def describe_bind_error(host: str, port: int, error: OSError, option: str) -> str:
    """option: that of the command line which names another port."""
    other = f"choose another one with {option} N"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine: listen on 127.0.0.1, or on 0.0.0.0 for all of them"
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use, perhaps by another gateway: {other}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port {port} on {host} may not be opened by user {os.geteuid()}: {other}, above 1023"
    return f"port {port} on {host} cannot be opened ({error.strerror or type(error).__name__}): {other}"
