"""A worker without a gateway: `python -m tests.workers.toy_worker BEHAVIOUR --as-worker N --link FD`.

serve: ready, until it is told to drain or the link ends · refuse: says why it cannot serve · die: ends at
once · hang: never ready · deaf: ready, and never ends by itself · brief: ready, and ends at once
"""

import argparse
import socket
import sys
import time

from gateway.workers.messages import (
    DrainOrder,
    FailedReport,
    HurryOrder,
    ReadyReport,
    Report,
    parse_order,
    render,
)

_FOR_EVER_SECONDS = 600.0


def _send(link: socket.socket, report: Report) -> None:
    message = render(report)
    link.sendall(len(message).to_bytes(4, "big") + message)


def _receive(link: socket.socket) -> bytes | None:
    head = link.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        return None
    return link.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)


def _serve(link: socket.socket) -> int:
    _send(link, ReadyReport(windows=7))
    while (message := _receive(link)) is not None:
        order = parse_order(message)
        if isinstance(order, DrainOrder):
            return 0
        if isinstance(order, HurryOrder):
            return 3
    return 4


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("behaviour")
    parser.add_argument("--as-worker", type=int)
    parser.add_argument("--link", type=int)
    options = parser.parse_args()
    if options.behaviour == "die":
        return 9
    with socket.socket(fileno=options.link) as link:
        _receive(link)
        match options.behaviour:
            case "serve":
                return _serve(link)
            case "refuse":
                _send(link, FailedReport(reason="no such store", status=2))
                return 2
            case "brief" | "deaf":
                _send(link, ReadyReport(windows=7))
        if options.behaviour != "brief":
            time.sleep(_FOR_EVER_SECONDS)
    return 5


if __name__ == "__main__":
    sys.exit(main())
