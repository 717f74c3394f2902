"""What models cost: a rule of the settings, which comes before the bundled table."""

import fnmatch
from typing import Annotated

from pydantic import AfterValidator, Field

from gateway.core.money import Price
from gateway.settings.model_rule import check_pattern
from gateway.settings.section import Section
from gateway.settings.values import NonEmpty

Usd = Annotated[float, Field(ge=0, le=100_000)]


class PriceRule(Section):
    """US dollars for a million tokens of the models that match a pattern. The first match wins."""

    match: Annotated[NonEmpty, AfterValidator(check_pattern)] = Field(
        description="Pattern for model names with *, ? and [abc]; case-sensitive."
    )
    input: Usd = Field(description="US dollars for a million tokens of the prompt.")
    cached_input: Usd | None = Field(
        default=None, description="For those that the upstream read from its cache; null: as input."
    )
    cache_write: Usd | None = Field(
        default=None, description="For those that it wrote to its cache; null: as input."
    )
    output: Usd = Field(description="US dollars for a million tokens of the reply, with its reasoning.")

    def applies_to(self, model: str) -> bool:
        return fnmatch.fnmatchcase(model, self.match)

    @property
    def price(self) -> Price:
        return Price(
            input=self.input,
            output=self.output,
            cached_input=self.cached_input,
            cache_write=self.cache_write,
            name=self.match,
        )
