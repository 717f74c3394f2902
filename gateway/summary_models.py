"""Which model summarises for a turn; remembers those that an upstream does not know.

A cheaper model is a guess about the upstream. Where the guess is wrong, the conversation's own model is
asked, which the caller certainly may use.
"""

import logging
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Final

from gateway.conversations.turn import Turn
from gateway.core.policy import Summary

log = logging.getLogger("gateway.summary_models")

# An upstream may get new models; asking once more costs one refused call.
_FORGET_SECONDS: Final = 3_600.0
_MOST_REMEMBERED: Final = 4_096


def choose_summary_model(summary: Summary, model: str) -> str:
    """The policy's own model, else that of the first pattern that fits, else the conversation's."""
    if summary.model is not None:
        return summary.model
    mapped = next((name for pattern, name in summary.model_map if fnmatchcase(model, pattern)), None)
    return mapped or model


class SummaryModels:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Tenant, upstream and model, with the time until which it counts as unknown: keys differ in what they
        # may use.
        self._unknown: dict[tuple[str, str, str], float] = {}

    def choose(self, turn: Turn, upstream: str) -> str:
        chosen = choose_summary_model(turn.policy.summary, turn.model)
        is_unknown = self._clock() < self._unknown.get((turn.owner, upstream, chosen), 0.0)
        return turn.model if is_unknown else chosen

    def note_unknown(self, turn: Turn, upstream: str, model: str) -> bool:
        """True where another one is to be asked now. What the policy names itself is never replaced."""
        if model == turn.model or turn.policy.summary.model is not None:
            return False
        if len(self._unknown) >= _MOST_REMEMBERED:
            self._unknown.clear()
        self._unknown[turn.owner, upstream, model] = self._clock() + _FORGET_SECONDS
        log.info("summary model %s is unknown at %s: asking the conversation's own", model, upstream)
        return True
