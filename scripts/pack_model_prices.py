"""Rebuild gateway/data/model_prices.json from a litellm wheel.

    python scripts/pack_model_prices.py [VERSION]

The rules are those of `RULES`, which the file repeats. With the version that the file names, and on the day
it names, this gives the same file again, byte for byte.
"""

import datetime
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pack_model_limits import MEMBER, VERSION
from pack_ranks import load_member

DATA = Path(__file__).parent.parent / "gateway" / "data"
TARGET = DATA / "model_prices.json"
# Providers whose models are bought from themselves, and the beginnings of their models' names.
PROVIDERS: dict[str, tuple[str, ...]] = {
    "openai": ("",),
    "anthropic": ("",),
    "gemini": ("gemini",),
    "deepseek": ("deepseek",),
    "dashscope": ("qwen", "qwq", "qvq"),
    "xai": ("grok",),
    "mistral": ("",),
    "moonshot": ("kimi", "moonshot"),
    "zai": ("glm",),
    "minimax": ("MiniMax",),
}
FIELDS = {
    "input": "input_cost_per_token",
    "cached_input": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
    "output": "output_cost_per_token",
}
RULES = [
    "a row for each chat model that its own provider sells: " + ", ".join(PROVIDERS),
    "a name has no provider before it: mistral/codestral-latest is codestral-latest",
    "US dollars for a million tokens; a price of 0 for a cache, and one that the source has not, is left out",
    "rows without a positive price of input and output are left out",
    "lookup: the name as given, after each '/', then without a region and a vendor as Bedrock writes them",
]
CAVEAT = (
    "prices of the usual tier: batch, flex, priority, regional and long-context prices differ, and so do "
    "contracts; caches that are kept for an hour cost more to write"
)


def main(version: str) -> None:
    entries = json.loads(load_member(f"litellm=={version}", MEMBER))
    rows = dict(sorted(parse_rows(entries)))
    limits = json.loads((DATA / "model_limits.json").read_text("utf-8"))["_source"]
    source = {
        "from": f"litellm {version} (PyPI wheel), {MEMBER}; entries with mode chat or responses",
        "read_on": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **{name: limits[name] for name in ("licence", "copyright", "notice")},
        "rules": RULES,
        "caveat": CAVEAT,
        "models": len(rows),
    }
    lines = [f'"_source":{json.dumps(source)}']
    lines += [f"{json.dumps(name)}:{json.dumps(row, separators=(',', ':'))}" for name, row in rows.items()]
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    print(f"{TARGET.name}: {len(rows)} models")


def parse_rows(entries: dict[str, dict[str, Any]]) -> Iterator[tuple[str, dict[str, float]]]:
    for full_name, entry in entries.items():
        provider = entry.get("litellm_provider", "")
        name = full_name.removeprefix(f"{provider}/")
        if entry.get("mode") not in ("chat", "responses") or not name.startswith(PROVIDERS.get(provider, ())):
            continue
        row = {field: round_usd(entry.get(key)) for field, key in FIELDS.items()}
        if row["input"] and row["output"]:
            yield name, {field: usd for field, usd in row.items() if usd}


def round_usd(per_token: float | None) -> float:
    """For a million tokens; 0 if there is no price."""
    return round((per_token or 0) * 1_000_000, 6)


if __name__ == "__main__":
    main(*sys.argv[1:2] or [VERSION])
