"""The bundled table of what models can hold.

`data/model_limits.json` comes from litellm (MIT, see data/NOTICE.md); its `_source` names the rules. It says
nothing about upstreams, so it is the last source after configuration, the upstream's own model list and the
numbers in its overflow errors.
"""

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files

import msgspec

from gateway.core.limits.model_limits import Limits
from gateway.core.limits.model_names import LONGEST_NAME_CHARS, make_names

_FOUND_NAMES = 1_024


class _Row(msgspec.Struct):
    context: int
    input: int | None
    output: int | None


class ModelTable:
    """Limits by model name. Names that were looked up are kept, with or without limits."""

    def __init__(self, rows: Mapping[str, Limits]) -> None:
        self._rows = rows
        self._find_cached = lru_cache(_FOUND_NAMES)(self._search)

    @classmethod
    def load(cls) -> "ModelTable":
        """About 10 ms."""
        return cls(parse_table(files("gateway").joinpath("data/model_limits.json").read_bytes()))

    @property
    def size(self) -> int:
        """How many models it has."""
        return len(self._rows)

    @property
    def rows(self) -> Mapping[str, Limits]:
        return self._rows

    def find(self, model: str) -> Limits | None:
        """None for a model that is not in the table."""
        return self._find_cached(model) if len(model) <= LONGEST_NAME_CHARS else None

    def find_name(self, model: str) -> str | None:
        """The name by which the table has the model."""
        return next((name for name in make_names(model) if name in self._rows), None)

    def _search(self, model: str) -> Limits | None:
        name = self.find_name(model)
        return self._rows[name] if name is not None else None


def parse_table(data: bytes) -> dict[str, Limits]:
    """Rows by name. The rows share their few hundred distinct limits, to stay small in memory."""
    raw = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    del raw["_source"]
    shared: dict[bytes, Limits] = {}
    for row in raw.values():
        text = bytes(row)
        if text not in shared:
            shared[text] = _make_limits(msgspec.json.decode(text, type=_Row))
    return {name: shared[bytes(row)] for name, row in raw.items()}


def _make_limits(row: _Row) -> Limits:
    """An output as large as the window cannot be reserved (`_source.caveat`), so it counts as unknown."""
    is_usable = row.output is not None and row.output < row.context
    return Limits(context=row.context, input=row.input, output=row.output if is_usable else None)
