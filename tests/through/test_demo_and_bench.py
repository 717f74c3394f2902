"""What the product plays by itself: the demo, whose output README shows, and the benches."""

import re
from pathlib import Path

import pytest

from bench.economics.plays import DEFAULT, TODAY, play_all
from bench.economics.tables import BEST, measure, print_ratios, print_targets
from bench.economics.tariffs import TARIFFS
from bench.economics.workloads import list_small_workloads
from bench.report import with_section, written_to_report
from bench.seen import PAGE, render_page
from tests.shared_data import requires_shared
from tests.toy.product import command

_ROOT = Path(__file__).resolve().parents[2]


def read_excerpt() -> list[str]:
    """What README shows of the demo's output, without numbers: these may change."""
    readme = (_ROOT / "README.md").read_text("utf-8")
    shown = re.search(r"^```\n( +agent sends .*?)^```", readme, re.DOTALL | re.MULTILINE)
    assert shown is not None
    return [_normalize(line).removesuffix(" ...") for line in shown[1].splitlines() if line != "..."]


def _normalize(text: str) -> str:
    return re.sub(r"[ ]+", " ", re.sub(r"conversation=\w+|[\d,.]*\d", "#", text))


def test_the_demo_shows_a_compaction_and_what_happens_without_it() -> None:
    shown = command("demo")
    assert shown.status == 0, shown.err
    text = shown.out
    turns = re.findall(r"^ +(\d+) +(\d+) +([\d,]+) +(\d+) +([\d,]+)  (\S+) +[█░]{20}$", text, re.MULTILINE)
    assert len(turns) > 20 and [int(turn[0]) for turn in turns] == list(range(1, len(turns) + 1))
    assert turns[0][5] == "passthrough" and turns[-1][5] in ("pivot", "pivot+pruned")
    # The agent's history grows to the end, and the model gets less of it.
    assert int(turns[-1][1]) == 2 * len(turns) > int(turns[-1][3])
    assert re.search(r"log: INFO gateway\.compactor compacted covers=\d+ of=\d+\n", text)
    assert f"{len(turns) - 1} of {len(turns) - 1} findings" in text
    first = next(turn[0] for turn in turns if turn[5].startswith("pivot"))
    assert f"From turn {first} on, the model got a summary" in text
    refusal = re.search(r"refused in turn (\d+)", text)
    assert refusal is not None and int(refusal[1]) < len(turns)
    assert "maximum context length is 8192 tokens" in text
    assert re.search(r"[+−]\$\d+\.\d+ (saved|more spent): \$.* without the gateway, \$.* with it", text)
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"http://127\.0\.0\.1:\d+/\n", text)
    for line in read_excerpt():
        assert line in _normalize(text), line


# The benches are programs of their own.


def test_a_small_conversation_is_played_priced_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    workloads = list_small_workloads()
    policies = {TODAY: "preset: adaptive, economy: 0, summary: {ride: never}", DEFAULT: "preset: adaptive"}
    measured = measure(workloads, play_all(workloads, policies, processes=1), [*policies])
    print_ratios(measured)
    print_targets(measured)
    shown = capsys.readouterr().out
    assert TODAY in shown and BEST in shown
    for tariff in TARIFFS:
        assert measured.find_ratios(TODAY, tariff.name) == [1.0]
        assert measured.find_ratios(BEST, tariff.name)[0] < 1.0


def test_a_part_of_the_report_replaces_its_own_section_and_no_other(tmp_path: Path) -> None:
    report = "# Benchmarks\n\n## speed\n\nslow\n\n## memory\n\nsmall\n"
    fast = "# Benchmarks\n\n## speed\n\nfast\n\n## memory\n\nsmall\n"
    assert with_section(report, "speed", "## speed\n\nfast\n") == fast
    path = tmp_path / "benchmarks.md"
    for figure in ("1.2", "1.3"):
        with written_to_report("sse", path):
            print(f"events  {figure}")  # noqa: T201 - the subject of this test
    text = path.read_text("utf-8")
    assert text.startswith("# Benchmarks\n") and "`python -m bench sse`, " in text
    assert text.count("## sse") == 1 and "events  1.3" in text and "events  1.2" not in text


@requires_shared
def test_the_page_of_what_the_model_sees_is_what_the_bench_writes() -> None:
    assert PAGE.read_text("utf-8") == render_page()
