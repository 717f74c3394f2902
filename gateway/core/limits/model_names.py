"""The names by which a table may have a model, of one name that a client wrote."""

import re
from collections.abc import Iterator

# Part of the lookup rule of the bundled tables (`_source`): Bedrock writes region and vendor before a
# model's name.
_REGION = re.compile(r"(?:us-gov|us|eu|apac|jp|au|ca|sa|global)\.(?=.)")
# At least three letters, because `in.` is a region that the rule does not list.
_VENDOR = re.compile(r"[a-z][a-z0-9]{2,}\.(?=.)")
# Clients choose the name. No model has a longer one.
LONGEST_NAME_CHARS = 256


def make_names(model: str) -> Iterator[str]:
    """The names to look for, best first: as given, after each '/', without a region, without a vendor."""
    parts = model.split("/")
    names = ["/".join(parts[start:]) for start in range(len(parts))]
    yield from names
    regional = [name[region.end() :] for name in names if (region := _REGION.match(name))]
    yield from regional
    yield from (name[vendor.end() :] for name in names + regional if (vendor := _VENDOR.match(name)))
