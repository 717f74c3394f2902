"""Who sends a request, which policy holds for it, and what it may use."""

from gateway.tenants.tenants import (
    Policies,
    Tenancy,
    Tenant,
    find_tenant,
    list_tenants,
    make_tenant_id,
)

__all__ = ["Policies", "Tenancy", "Tenant", "find_tenant", "list_tenants", "make_tenant_id"]
