"""One product for each module and a tenant for each test, as below `tests/through`."""

from tests.through.conftest import house as house
from tests.through.conftest import shared_house as shared_house
