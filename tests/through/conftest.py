"""One toy and one product for each module, and a tenant for each test.

A module says what it needs in WINDOW, BIAS, MORE (YAML) and PRICE; what it does not say is as below. Its
tests run in one event loop: `pytestmark = pytest.mark.asyncio(loop_scope="module")`.
"""

import hashlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.toy.house import ADMIN, House, make_settings
from tests.toy.product import serve
from tests.toy.upstream import ToyUpstream
from tests.toy.wire import Wire, opening_wire


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_house(request: pytest.FixtureRequest, through_store: str) -> AsyncIterator[House]:
    """The house of nobody. Tests take `house`."""
    names = vars(request.module)
    toy = ToyUpstream(window=names.get("WINDOW", 16_000), bias=names.get("BIAS", 1.2))
    async with toy:
        more = ADMIN + names.get("MORE", "")
        settings = make_settings(toy, store=through_store, price=names.get("PRICE", ""), more=more)
        async with serve(settings) as product:
            yield House(toy, product, "sk-nobody")


@pytest_asyncio.fixture(loop_scope="module")
async def house(shared_house: House, request: pytest.FixtureRequest) -> House:
    """A tenant of this test alone; the toy is as new."""
    await shared_house.product.at_rest()
    shared_house.toy.reset()
    name = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    return House(shared_house.toy, shared_house.product, f"sk-{name}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_wire(request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    """A raw upstream in place of a toy. A module says more of it in WIRE_UPSTREAM and WIRE_MORE (YAML)."""
    names = vars(request.module)
    async with opening_wire(names.get("WIRE_UPSTREAM", ""), names.get("WIRE_MORE", "")) as wire:
        yield wire


@pytest.fixture
def wire(shared_wire: Wire) -> Wire:
    """The upstream is as new."""
    shared_wire.reset()
    return shared_wire
