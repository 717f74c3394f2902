import asyncio
import time

from gateway.bounds.loop_delay import sample_loop_delay


async def test_a_step_that_blocks_the_loop_is_seen() -> None:
    delays: list[float] = []
    sampling = asyncio.create_task(sample_loop_delay(delays.append, 0.001))
    async with asyncio.timeout(30):
        while not delays:
            await asyncio.sleep(0)
        before = len(delays)
        while len(delays) < before + 1:
            time.sleep(0.05)  # noqa: ASYNC251 - the step that must be seen
            await asyncio.sleep(0)
    sampling.cancel()
    assert min(delays) >= 0 and max(delays) >= 0.04
