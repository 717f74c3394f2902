"""How much fits: the limits of one model at one upstream.

Knows nothing of where a limit was learned; `context`, `input` and `output` are three different things.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Tokens. `None` is unset; without `context` and `input` the window counts as unlimited.

    context: the whole window, prompt and reply together.
    input: a separate cap on the prompt, where the model has one.
    output: the largest reply.
    """

    context: int | None = None
    input: int | None = None
    output: int | None = None

    def with_defaults(self, other: "Limits") -> "Limits":
        """Field by field: ours where it is set, else the other's. 0 counts as unset (source 000 §3)."""
        return Limits(
            context=self.context or other.context or None,
            input=self.input or other.input or None,
            output=self.output or other.output or None,
        )
