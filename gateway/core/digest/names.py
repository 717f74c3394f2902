"""Finds the names in a text: facts, and identifiers that are written like code.

More than `facts`, whose words are worth repeating in a list: an identifier may be of any kind, so names only
measure what a piece of text has that another one lacks.
"""

import re
from typing import Final

from gateway.core.digest.facts import find_facts, is_secret

# Words joined by underscores or by capitals. Bounded, so that the time is linear in the length of any text.
_IDENTIFIER: Final = re.compile(
    r"\b(?:[A-Za-z][A-Za-z0-9]{0,59}_[A-Za-z0-9_]{1,59}|[a-z][a-z0-9]{1,59}[A-Z][A-Za-z0-9]{1,59}"
    r"|[A-Z][a-z0-9]{1,59}[A-Z][A-Za-z0-9]{1,59})\b"
)
# A shorter one is a part of too many others.
_SHORTEST_CHARS: Final = 6
_LONGEST_CHARS: Final = 60


def find_names(text: str) -> tuple[str, ...]:
    """Each once, without what looks like a key or a password."""
    identifiers = [
        name for name in _IDENTIFIER.findall(text) if _SHORTEST_CHARS <= len(name) <= _LONGEST_CHARS
    ]
    found = dict.fromkeys([*find_facts(text), *identifiers])
    return tuple(name for name in found if not is_secret(name))
