"""For tests that have not moved: see tests/toy/wire.py."""

from tests.toy.wire import *  # noqa: F403 - all of it
