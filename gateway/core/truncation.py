"""Did the upstream cut the prompt without a word? Ollama does, and its usage then counts what is left.

FACTS §4: usage far below the estimate is an overflow, too. Knows nothing of how the estimate was made.
"""

from gateway.core.estimate import Estimate

# Half of what it must at least have been: no tokenizer is that far off its own calibration.
_SHARE = 0.5
# Ollama's smallest default window. Below it nothing is cut, and little things weigh much.
_SMALLEST_PROMPT_TOKENS = 2_048


def is_truncated(prompt_tokens: int, estimate: Estimate) -> bool:
    """prompt_tokens: what the answer's usage counted. estimate: of the request as it was sent."""
    least = estimate.tokens - estimate.unsure
    return least > _SMALLEST_PROMPT_TOKENS and 0 < prompt_tokens < _SHARE * least
