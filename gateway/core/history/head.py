"""What is known at the end of a received request once its answer came.

Knows no clock and no store. A head is found by the chain of the request that it belongs to.
"""

import hashlib
from dataclasses import dataclass

# Of the tokens known before, or of the line they are on their way to: less is a small part of what an
# estimate may be wrong by.
_NEWS = 0.1


# Not frozen: one is made for every request, and frozen it takes six times as long.
@dataclass(kw_only=True, slots=True)
class Head:
    """prompt_tokens, output_tokens: upstream's own, 0 where it told nothing.

    scope: (upstream, model, leading block, tools) as one digest; usage counts for an equal scope only.
    pivot, batches: keys of what was in force. growth_tokens: recent growth per turn.
    followed_by: the chain of the request that went on from here first; another one is a branch. Set once.
    """

    owner: str
    key: str
    length: int
    scope: str
    tools: str
    prompt_tokens: int
    output_tokens: int
    growth_tokens: float
    pivot: str | None
    batches: tuple[str, ...]
    conversation: str
    parent: str | None
    followed_by: str | None = None

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


def is_worth_saving(head: Head, before: Head, line_tokens: int) -> bool:
    """Worth keeping beside an earlier one of its branch? What little was added since can be estimated.

    line_tokens: where something is to be decided, 0 if nowhere.
    """
    if (head.pivot, head.batches) != (before.pivot, before.batches):
        return True
    known_tokens = before.total_tokens
    return abs(head.total_tokens - known_tokens) > _NEWS * max(known_tokens, line_tokens)


def fingerprint_scope(upstream: str, model: str, leading: list[bytes], tools: bytes) -> str:
    """Digest of everything outside the chain that a prompt's size depends on."""
    parts = [upstream.encode(), model.encode(), b"".join(leading), tools]
    return hashlib.sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts)).hexdigest()


def smooth_growth(before: Head | None, total_tokens: int) -> float:
    """Mean of the last growth and this one; a step back (a rewind, a compaction) teaches nothing."""
    if before is None or not before.prompt_tokens:
        return 0.0
    step = total_tokens - before.total_tokens
    if step <= 0:
        return before.growth_tokens
    return float(step) if not before.growth_tokens else (before.growth_tokens + step) / 2
