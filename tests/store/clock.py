"""A clock that a test moves. It starts at the true time, because diskcache reads that itself."""

import time


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now
