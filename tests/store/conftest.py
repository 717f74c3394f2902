"""The backends of the contract, as a parameter."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.store.backends import EVERY, Backend, User


@pytest.fixture(params=EVERY)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """Not for tests: `backend` closes it. The server is started before there is a loop."""
    url = request.getfixturevalue("empty_redis").patient_url if request.param == "redis" else ""
    return Backend(request.param, tmp_path, url)


@pytest.fixture
async def backend(place: Backend) -> AsyncIterator[Backend]:
    yield place
    await place.close()


@pytest.fixture
async def user(backend: Backend) -> User:
    return await backend.connect()
