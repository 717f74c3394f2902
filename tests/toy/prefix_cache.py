"""A provider's prompt cache, for the toy: what a prompt begins with as an earlier one is read from it."""

from collections import deque

from tests.toy.economics import render_prompt, shared_bytes
from tests.toy.upstream import Request


class PrefixCache:
    """Of one conversation. `toy.cached_share = PrefixCache().read` reports what it has."""

    def __init__(self) -> None:
        self._before = deque([b""], maxlen=4)

    def read(self, request: Request) -> float:
        """The share of this prompt that is cached."""
        prompt = render_prompt(request)
        share = max(shared_bytes(before, prompt) for before in self._before) / max(1, len(prompt))
        self._before.append(prompt)
        return share
