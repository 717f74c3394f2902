"""What operators are told of the rare things: one log line and one count each, never a word of anybody."""

import logging
from typing import Final

from gateway.core.cut import Cut
from gateway.core.pivot import Pivot
from gateway.core.plan import Plan
from gateway.core.refusal import Overflow
from gateway.core.summary import Rejected
from gateway.metrics import Metrics
from gateway.turn import Turn

_compactor: Final = logging.getLogger("gateway.compactor")
_recovery: Final = logging.getLogger("gateway.recovery")


class Journal:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def note_compaction(
        self, turn: Turn, cut: Cut, made: Pivot | Rejected, reason: str, seconds: float
    ) -> None:
        """A summary or a digest, whatever came of it. reason: what it was made for."""
        where = f"conversation={turn.conversation} folded_tokens={cut.folded}"
        where += f" reason={reason} seconds={seconds:.1f}"
        kind = "digest" if reason == "digest" else "summary"
        if isinstance(made, Pivot):
            self._metrics.count_compaction(kind, None)
            _compactor.info("compacted covers=%d of=%d %s", made.covers, cut.covers, where)
        else:
            self._metrics.count_compaction(kind, made.reason)
            _compactor.warning("compaction failed: %s covers=%d %s", made.reason, cut.covers, where)

    def note_refusal(self, turn: Turn, plan: Plan, overflow: Overflow, *, is_retried: bool) -> None:
        """Upstream called it too large. Numbers only: the words of an error may quote the conversation."""
        self._metrics.count_refusal(overflow.kind, is_retried=is_retried)
        _recovery.warning(
            "too long for upstream: conversation=%s kind=%s retried=%s sent=%d context=%s input=%s used=%s",
            *(turn.conversation, overflow.kind, is_retried, plan.sent),
            *(overflow.context, overflow.input, overflow.used),
        )

    def note_truncation(self, turn: Turn, prompt_tokens: int, before: int, added: int) -> None:
        """Upstream left out a part of the prompt. Its count now and an answer ago, and what was added."""
        self._metrics.count_truncation()
        _recovery.warning(
            "upstream left out a part of the prompt: conversation=%s told=%d before=%d added=%d",
            *(turn.conversation, prompt_tokens, before, added),
        )
