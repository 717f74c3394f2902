"""Which model a policy's summaries are asked from, and whether that may be done at the end of the
conversation's own request, where the prompt cache has it: then they ride (docs/economics.md).

Knows policies and names of models. Whether a request can be ridden on is decided where it is built.
"""

from fnmatch import fnmatchcase
from functools import lru_cache

from gateway.core.compaction.summary import find_headings
from gateway.core.policy import Policy, Summary


def choose_summary_model(summary: Summary, model: str) -> str:
    """The policy's own model, else that of the first pattern that matches, else the conversation's model."""
    if summary.model is not None:
        return summary.model
    mapped = next((name for pattern, name in summary.model_map if fnmatchcase(model, pattern)), None)
    return mapped or model


def wants_riding(policy: Policy, model: str, upstream: str) -> bool:
    """Whether the policy's summaries ride at all: only on the conversation's own model, and only where
    headings tell a summary from an answer.
    """
    summary, prompts = policy.summary, policy.prompts
    return (
        summary.method == "model"
        and summary.ride == "auto"
        and bool(prompts.ride.strip())
        and summary.upstream in (None, upstream)
        and choose_summary_model(summary, model) == model
        and _has_headings(prompts.instruction)
    )


# Policies have few instructions, and each request that is measured asks.
@lru_cache(maxsize=64)
def _has_headings(instruction: str) -> bool:
    return bool(find_headings(instruction))
