"""A provider's prompt cache, for the toy: what a prompt begins with as the one before it is read from it."""

from tests.toy.economics import render_prompt, shared_bytes
from tests.toy.upstream import Request


class PrefixCache:
    """Of one conversation. `toy.cached_share = PrefixCache().read` reports what it has."""

    def __init__(self) -> None:
        self._before = b""

    def read(self, request: Request) -> float:
        """The share of this prompt that is cached."""
        prompt = render_prompt(request)
        share = shared_bytes(self._before, prompt) / max(1, len(prompt))
        self._before = prompt
        return share
