"""The numbers of `ceilings.yaml`, and what a run of the suite is told that takes too long."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_PATH = Path(__file__).with_name("ceilings.yaml")
# `make test` without arguments sets it; anything else switches the ceiling off.
_HELD = ("MAKE_TEST_SECONDS", "held")


def load_ceilings() -> Any:
    return yaml.safe_load(_PATH.read_text("utf-8"))


def find_excess_seconds(seconds: float, environment: Mapping[str, str]) -> str | None:
    name, held = _HELD
    most = int(load_ceilings()["seconds"])
    if environment.get(name) != held or seconds <= most:
        return None
    return f"make test took {seconds:.0f} seconds, and {most} are the most: see {_PATH.name}"
