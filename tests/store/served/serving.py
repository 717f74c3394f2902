"""A served store in one process: the server and its clients, over real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from gateway.store import Store
from gateway.store.memory import MemoryStore
from gateway.store.served.connection import StoreConnection
from gateway.store.served.served_store import ServedStore
from gateway.store.served.store_server import Service, StoreServer
from gateway.store.stores import Stores


class Serving:
    """What serves, and how clients of it are made."""

    def __init__(self, main: Store, services: Mapping[str, Service]) -> None:
        self.stores = Stores(main=main, originals=MemoryStore(), named=MemoryStore())
        self.server = StoreServer(self.stores, services)
        self.connections: list[StoreConnection] = []

    async def connect(self) -> ServedStore:
        """As a worker of its own."""
        ours, theirs = socket.socketpair()
        await self.server.connect(ours)
        connection = StoreConnection(theirs)
        self.connections.append(connection)
        store = ServedStore(connection)
        await store.open()
        return store


@asynccontextmanager
async def serving(
    main: Store | None = None, services: Mapping[str, Service] | None = None
) -> AsyncIterator[Serving]:
    served = Serving(main or MemoryStore(), services or {})
    await served.stores.open()
    try:
        yield served
    finally:
        for connection in served.connections:
            connection.close()
        await served.server.close()
        await served.stores.close()
        # Closed transports tell their protocols in the next round.
        await asyncio.sleep(0)
