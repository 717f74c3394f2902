"""One gateway with plain settings for all tests of a file: starting one costs a third of a second."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.wire_through.raw import render_answer, writing
from tests.wire_through.wiring import Wire, opening_wire


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_wire() -> AsyncIterator[Wire]:
    async with opening_wire() as wire:
        yield wire


@pytest.fixture
def wire(module_wire: Wire) -> Wire:
    """Tests that use it say `pytestmark = shared_loop` or the like: they run on the module's loop."""
    module_wire.upstream.received.clear()
    module_wire.upstream.script = writing(render_answer())
    return module_wire
