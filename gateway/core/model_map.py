"""Which model summarises for which: by patterns of names, the first that fits.

Knows nothing of what an upstream really serves.
"""

from fnmatch import fnmatchcase

from gateway.core.policy import Summary


def choose_summary_model(summary: Summary, model: str) -> str:
    """The policy's own model, else the mapped one, else the conversation's."""
    if summary.model is not None:
        return summary.model
    mapped = next((name for pattern, name in summary.model_map if fnmatchcase(model, pattern)), None)
    return mapped or model
