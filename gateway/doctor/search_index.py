"""Can originals be searched with the SQLite of this Python?"""

from collections.abc import Callable, Iterator
from typing import Final

from gateway.doctor.finding import Diagnosis, note_ok, warn
from gateway.originals.index_file import find_obstacle

_SUBJECT: Final = "search"


def examine_search(find: Callable[[], str | None] = find_obstacle) -> Iterator[Diagnosis]:
    """find: why this SQLite cannot search; None if it can."""
    obstacle = find()
    if obstacle is None:
        yield note_ok(_SUBJECT, "originals can be searched")
    else:
        what = f"originals cannot be searched, everything else works: {obstacle}"
        yield warn(_SUBJECT, what, "use a Python whose SQLite is 3.34 or later, with FTS5")
