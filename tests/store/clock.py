"""A clock that only moves when told. Starts at the true time, which diskcache reads for itself."""

import time


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now
