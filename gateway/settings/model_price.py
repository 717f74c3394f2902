"""What a model costs: a part of a rule about models, which comes before the bundled table."""

from typing import Annotated

from pydantic import Field

from gateway.core.money import Price
from gateway.settings.section import Section

Usd = Annotated[float, Field(ge=0, le=100_000)]


class ModelPrice(Section):
    """US dollars for a million tokens."""

    input: Usd = Field(description="US dollars for a million tokens of the prompt.")
    cached: Usd | None = Field(
        default=None, description="For those that the upstream reads from its cache; null: as input."
    )
    write: Usd | None = Field(
        default=None, description="For those that it writes to its cache; null: as input."
    )
    output: Usd = Field(description="For a million tokens of the reply, with its reasoning.")

    def name(self, name: str) -> Price:
        """The price, under the name that counts of money show."""
        return Price(
            input=self.input,
            output=self.output,
            cached_input=self.cached,
            cache_write=self.write,
            name=name,
        )
