"""How large the threads are whose history is not known here: an upstream reports it with each response.

In memory only. After a restart the next response tells it again.
"""

from typing import Final

from gateway.core.sizing.usage import Usage
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts

# Thousands of threads.
_MAX_BYTES: Final = 1 << 20
_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 200


class ThreadSizes:
    """Tokens by the tenant, the upstream and the name of the newest response."""

    def __init__(self) -> None:
        self._tokens: Lru[tuple[str, str, str], int] = Lru(_MAX_BYTES)

    def find(self, owner: str, upstream: str, name: str) -> int | None:
        """Of the prompt and the response together."""
        return self._tokens.get((owner, upstream, name))

    def clear(self) -> None:
        self._tokens.clear()

    def note(self, owner: str, upstream: str, name: str, usage: Usage) -> None:
        self._tokens.put((owner, upstream, name), usage.total, _WEIGHT_BYTES + weigh_texts(name))
