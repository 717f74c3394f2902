"""Tenants with limits."""

from gateway.settings import Quota
from gateway.tenants import Tenant, make_tenant_id


def make_limited_tenant(name: str = "a", **limits: int) -> Tenant:
    return Tenant(make_tenant_id(name), None, "default", quota=Quota(**limits))
