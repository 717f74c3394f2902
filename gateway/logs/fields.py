"""Values of a log line that have names, for readers that are programs. The text of the line has them, too."""

from collections.abc import Mapping
from typing import Final

# The attribute of a record that holds them.
FIELDS: Final = "fields"

FieldValue = str | int | float


def name_fields(**fields: FieldValue | None) -> Mapping[str, Mapping[str, FieldValue]]:
    """The `extra` of a logging call. What is None is left out."""
    return {FIELDS: {name: value for name, value in fields.items() if value is not None}}
