"""Tenants with limits, and counts that several ledgers share until they are taken away."""

import msgspec

from gateway.quotas.ledger import Backend
from gateway.quotas.served import QuotaServer, make_served_backend
from gateway.settings import Quota
from gateway.store import StoreError
from gateway.tenants import Tenant, make_tenant_id


class ToySupervisor:
    """Counts for all workers that are connected to it, unless it is away."""

    def __init__(self) -> None:
        self.is_away = False
        # What it was asked for.
        self.calls: list[str] = []
        self._server = QuotaServer()

    def connect(self) -> Backend:
        return make_served_backend(self.answer)

    async def answer(self, request: bytes) -> bytes:
        self.calls.append(msgspec.msgpack.decode(request)[0])
        if self.is_away:
            raise StoreError("the supervisor is away")
        return await self._server.answer(request)


def make_limited_tenant(name: str = "a", **limits: int) -> Tenant:
    return Tenant(make_tenant_id(name), None, "default", quota=Quota(**limits))
