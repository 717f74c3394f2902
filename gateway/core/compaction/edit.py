"""Whether a text that a person wrote may take the place of a summary.

The checks of a model's reply apply as far as they concern the text alone: a person's words are not taken for
a refusal, and are not cut.
"""

from typing import Final

from gateway.core.compaction.cut import SMALLER_SHARE
from gateway.core.compaction.summary import CAP_TOLERANCE, Rejected, SummaryBounds

EMPTY: Final = Rejected("The summary is empty.", is_summarizer_fault=False)


def find_edit_flaw(text: str, tokens: int, bounds: SummaryBounds) -> Rejected | None:
    """None if the text may be used. tokens: of the text. bounds.cap_tokens: 0 if no window is known."""
    if not text.strip():
        return EMPTY
    cap_tokens = int(bounds.cap_tokens * CAP_TOLERANCE)
    if bounds.cap_tokens and tokens > cap_tokens:
        return _reject(f"The summary has about {tokens} tokens; at most {cap_tokens} are allowed here.")
    if tokens > bounds.replaced_tokens * SMALLER_SHARE:
        return _reject(
            f"The summary has about {tokens} tokens and replaces about {bounds.replaced_tokens}: it must be"
            " at least 10 % smaller than what it replaces."
        )
    return None


def _reject(reason: str) -> Rejected:
    return Rejected(reason, is_summarizer_fault=False)
