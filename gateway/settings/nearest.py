"""Which known name did the writer mean?"""

import difflib
from collections.abc import Iterable


def find_nearest(name: str, known: Iterable[str], *, likeness: float = 0.0) -> str:
    """The most similar name; "" if none is as similar as `likeness`, from 0 (not at all) to 1 (the same)."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=likeness)), "")
