"""For tests that have not moved: see tests/toy/raw.py."""

from tests.toy.raw import *  # noqa: F403 - all of it
