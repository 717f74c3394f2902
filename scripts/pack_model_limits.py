"""Rebuild gateway/data/model_limits.json from a litellm wheel.

    python scripts/pack_model_limits.py [VERSION]

The rules are those of the file's own `_source.rules`, quoted below where they are applied.
With the version that the file names, and on the day it names, this gives the same file again, byte for byte.
"""

import datetime
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gateway.core.limits.model_limits import make_names
from pack_ranks import load_member

VERSION = "1.106.2"
MEMBER = "litellm/model_prices_and_context_window_backup.json"
TARGET = Path(__file__).parent.parent / "gateway" / "data" / "model_limits.json"

GPT_NAME = re.compile(r"gpt-|/chat-latest$")
GPT_VERSION = re.compile(r"gpt-(?:[a-z]+-)*(\d+(?:\.\d+)?)")


class Row(NamedTuple):
    """Tokens, as `_source.fields` explains them."""

    context: int
    input: int | None
    output: int | None


# "GPT rows whose max_input + max_output is a known window"
KNOWN_WINDOWS = {
    (272_000, 128_000): Row(400_000, 272_000, 128_000),
    (922_000, 128_000): Row(1_050_000, 922_000, 128_000),
    (111_616, 16_384): Row(128_000, 111_616, 16_384),
}


def main(version: str) -> None:
    entries = json.loads(load_member(f"litellm=={version}", MEMBER))
    rows = without_repetitions(dict(parse_rows(entries)))
    source = json.loads(TARGET.read_text("utf-8"))["_source"] | {
        "from": f"litellm {version} (PyPI wheel), {MEMBER}; entries with mode chat or responses",
        "read_on": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "models": len(rows),
    }
    TARGET.write_text(render_table(source, rows), "utf-8")
    print(f"{TARGET.name}: {len(rows)} models")


def parse_rows(entries: dict[str, dict[str, Any]]) -> Iterator[tuple[str, Row]]:
    for name, entry in entries.items():
        largest_input = entry.get("max_input_tokens")
        # "rows without a positive max_input_tokens are left out; snowflake/openai-gpt-5* is left out …"
        if entry.get("mode") not in ("chat", "responses") or name.startswith("snowflake/openai-gpt-5"):
            continue
        if isinstance(largest_input, int) and largest_input > 0:
            yield name, choose_row(name, largest_input, entry.get("max_output_tokens"))


def choose_row(name: str, largest_input: int, output: int | None) -> Row:
    """In the order of the rules: known windows, GPT-5 at 400,000, GPT-5.4 and later, everything else."""
    if output and GPT_NAME.search(name):
        if (largest_input, output) in KNOWN_WINDOWS:
            return KNOWN_WINDOWS[largest_input, output]
        if "gpt-5" in name and (largest_input, output) == (400_000, 128_000):
            return Row(400_000, 272_000, output)
        version = GPT_VERSION.search(name)
        if version and float(version[1]) >= 5.4 and largest_input >= 900_000:
            return Row(largest_input, largest_input - output, output)
    return Row(largest_input, None, output)


def without_repetitions(rows: dict[str, Row]) -> dict[str, Row]:
    """ "a name with a provider, region or vendor prefix is left out when the bare name is present with equal
    limits" """
    return {
        name: row
        for name, row in rows.items()
        if not any(rows.get(bare) == row for bare in make_names(name) if bare != name)
    }


def render_table(source: dict[str, Any], rows: dict[str, Row]) -> str:
    """One model per line, so that an update can be read as a diff."""
    lines = [f'"_source":{json.dumps(source)}']
    for name, row in sorted(rows.items()):
        lines.append(f"{json.dumps(name)}:{json.dumps(row._asdict(), separators=(',', ':'))}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    main(*sys.argv[1:2] or [VERSION])
