"""Starts toys in the place of workers."""

import sys

from gateway.workers.messages import StartOrder
from gateway.workers.worker_process import Launch, WorkerProcess, launch

ORDER = StartOrder(
    settings=None,
    reloaded=None,
    listening=(),
    tally=-1,
    store=None,
    admin_path="",
    checks_upstreams=False,
)


def make_launch(behaviour: str, number: int = 1) -> Launch:
    command = (sys.executable, "-m", "tests.workers.toy_worker", behaviour)
    return Launch(number=number, command=command, descriptors=())


async def start_toy(behaviour: str, number: int = 1) -> WorkerProcess:
    return await launch(make_launch(behaviour, number), ORDER)
