"""Each system of the source documents (docs/sources.md) is proved by a test that carries its number.

`@pytest.mark.system(2)` marks a test of system 2. Each has a row through a running gateway.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

_SYSTEMS = {
    1: "the window is checked after each step, by the usage that the upstream reports",
    2: "a marker queues a compaction and survives a restart",
    3: "a summary call has prompts of its own and no tools",
    4: "a resume text follows an automatic compaction",
    5: "history is cut at the newest summary, never at a failed one",
    6: "old tool results are pruned by the rule of 000",
    7: "originals stay readable",
    8: "hooks add context or replace the prompt, and a compaction is published",
    9: "thresholds, estimators and the environment are settings",
    10: "compaction at 90 %, ten messages kept, and a compaction log",
    11: "a rolling window, and pruning without summaries",
    12: "compaction at 80 % and 95 % of utilization, with 40 % preserved",
    13: "a cheaper model summarizes",
    14: "webhooks before and after a compaction, and its boundary",
    15: "compaction on demand, with instructions",
    16: "the long window of some models",
    17: "long old results are cut",
    18: "a digest without a model, and estimates",
    19: "pruning by the rule of 004",
    20: "session summary: file changes per session (additions, deletions) and message titles",
}
_ROWS = Path(__file__).parent.parent / "through" / "test_twenty_rows.py"


def test_every_system_is_proved_by_a_test() -> None:
    assert {*_find_numbers()} == _SYSTEMS.keys()


def _find_numbers() -> Iterator[int]:
    for node in ast.walk(ast.parse(_ROWS.read_text("utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.system":
            yield from (int(ast.unparse(number)) for number in node.args)
