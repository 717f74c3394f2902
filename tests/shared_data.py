"""Where the recorded traffic is: in `shared` beside the repository, or where GATEWAY_SHARED says."""

import os
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parent.parent

SHARED = Path(os.environ.get("GATEWAY_SHARED") or _ROOT.parent / "shared")

requires_shared = pytest.mark.skipif(
    not (SHARED / "data").is_dir(),
    reason="no recorded traffic: put `shared` beside the repository or name it in GATEWAY_SHARED",
)
