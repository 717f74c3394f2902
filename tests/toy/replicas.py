"""Gateways in one process that share a store, and sessions whose turns go to one of them by chance."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from gateway.store.stores import Stores
from tests.toy.agent import PLAIN, Session, Shape
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import Pace, Run, run_session
from tests.toy.shared_store import ToyServer
from tests.toy.upstream import ToyUpstream

# Where several processes serve a client that trims its history, it has to name its session.
LABEL = {"x-gateway-session": "toy"}
_MORE = "admin: {port: 0}\n"


@dataclass(frozen=True)
class Replicas:
    toy: ToyUpstream
    gateways: Sequence[RunningGateway]

    async def settle(self) -> None:
        for gateway in self.gateways:
            await gateway.settle()

    async def play(self, session: Session, seed: int, shape: Shape = PLAIN) -> Run:
        """Each turn goes to a replica drawn by chance, after all work for the one before is done."""
        rng, runs, pace = random.Random(seed), list[Run](), Pace()
        for turn in range(len(session)):
            since = runs[-1].since if runs else None
            pace = Pace(first=turn, last=turn + 1, since=since, headers=LABEL)
            gateway = rng.choice(self.gateways)
            runs.append(await run_session(session, gateway.base_url, self.toy, shape, pace))
            await self.settle()
        return Run(
            answers=tuple(answer for run in runs for answer in run.answers),
            seen=tuple(self.toy.requests),
            replays=tuple(code for run in runs for code in run.replays),
            sinces=tuple(since for run in runs for since in run.sinces),
        )


class ToyServers:
    """The shared stores of a group of gateways."""

    def __init__(self) -> None:
        self.main = ToyServer()
        self._originals, self._named = ToyServer(), ToyServer()

    def connect(self) -> Stores:
        """Of one gateway."""
        return Stores(
            main=self.main.connect(), originals=self._originals.connect(), named=self._named.connect()
        )


@asynccontextmanager
async def running_replicas(toy: ToyUpstream, count: int, url: str = "") -> AsyncIterator[Replicas]:
    """url: of the store that they share; empty for a toy of one."""
    servers = ToyServers()
    async with AsyncExitStack() as exits:
        gateways = []
        for _ in range(count):
            stores = None if url else servers.connect()
            running = running_gateway(make_settings(toy, store=url, more=_MORE), stores=stores)
            gateways.append(await exits.enter_async_context(running))
        yield Replicas(toy, gateways)
