"""A rule about models, of all tenants or of one: limits, a price or a policy of those that fit a pattern."""

import fnmatch
import re
from typing import Annotated

from pydantic import AfterValidator, Field

from gateway.core.limits.model_limits import Limits
from gateway.settings.model_price import ModelPrice
from gateway.settings.section import Section
from gateway.settings.values import NonEmpty

# No model for conversations has less; a smaller number is one of thousands.
_SMALLEST_WINDOW_TOKENS = 1_000
# No name of a model has any of these. (A dot before a star may be meant: `gpt-4.*`.)
_REGULAR_EXPRESSION = re.compile(r"^\^|\$$|^\.[*+]|\.\+|[\\|(){}]")
# As fnmatch reads it: a `]` right behind the bracket belongs to the class.
_CHARACTER_CLASS = re.compile(r"\[!?+\]?+[^\]]*\]")
# What fnmatch makes of a class without characters.
_FITS_NOTHING = "(?!)"


def check_pattern(pattern: str) -> str:
    """A pattern that matches no model is refused, and so is a regular expression."""
    if _REGULAR_EXPRESSION.search(pattern):
        raise ValueError("is not a regular expression: it has *, ? and [abc] only, and fits the whole name")
    rest = _CHARACTER_CLASS.sub("", pattern)
    if "[" in rest:
        raise ValueError("has a '[' without its ']', so it fits no model")
    if any(_FITS_NOTHING in fnmatch.translate(found) for found in _CHARACTER_CLASS.findall(pattern)):
        raise ValueError("has a range that ends before it begins, so it fits no model")
    return pattern


def _check_window(tokens: int) -> int:
    if 0 < tokens < _SMALLEST_WINDOW_TOKENS:
        raise ValueError("is a number of tokens, so 128K is written 128000; no model has fewer than 1000")
    return tokens


Window = Annotated[int, Field(ge=0), AfterValidator(_check_window)]


class ModelRule(Section):
    """Limits, a price or a policy of the models that match a pattern. The first match wins for each."""

    match: Annotated[NonEmpty, AfterValidator(check_pattern)] = Field(
        description="Pattern for model names with *, ? and [abc]; case-sensitive."
    )
    upstream: NonEmpty | None = Field(
        default=None, description="Applies at this upstream only; null: at every one."
    )
    context: Window | None = Field(
        default=None, description="Tokens of prompt and reply together; null or 0: not set."
    )
    input: Window | None = Field(
        default=None,
        description="Tokens of the prompt, if the model limits it separately; null or 0: not set.",
    )
    output: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Tokens of the longest reply; null or 0: not set."
    )

    price: ModelPrice | None = Field(
        default=None, description="US dollars for a million tokens; null: not set."
    )
    policy: NonEmpty | None = Field(
        default=None, description="Policy for these models instead of the tenant's; null: the tenant's."
    )

    @property
    def is_about_limits(self) -> bool:
        """A rule with a policy or a price alone does not override the limits of a later rule."""
        return (self.policy is None and self.price is None) or self.limits != Limits()

    def applies_to(self, model: str, upstream: str) -> bool:
        return self.upstream in (None, upstream) and fnmatch.fnmatchcase(model, self.match)

    def nearly_applies_to(self, model: str, upstream: str) -> bool:
        """Whether it would apply if case did not matter, and if `.*` meant what it does elsewhere."""
        pattern = self.match.replace(".*", "*").casefold()
        return self.upstream in (None, upstream) and fnmatch.fnmatchcase(model.casefold(), pattern)

    @property
    def limits(self) -> Limits:
        return Limits(context=self.context, input=self.input, output=self.output)
