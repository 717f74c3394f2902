"""What the product plays by itself: the demo, whose output README shows, and the benches."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.economics.plays import DEFAULT, TODAY, play_all
from bench.economics.schedules import Course, find_optimum, price_schedule, truncate
from bench.economics.tables import BEST, measure, print_ratios, print_targets
from bench.economics.tariffs import TARIFFS
from bench.economics.workloads import list_small_workloads
from bench.redis_cost import RedisFigures, parse_calls, subtract
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


# The benches are programs of their own. Their sums are checked on courses small enough to count by hand.


def make_even_course(requests: int, growth: int = 2_000, hard: int = 20_000) -> Course:
    sizes = [2_000 + growth * at for at in range(requests)]
    return Course(received=sizes, replies=[100] * requests, environment=1_500, floor=2_000, hard=hard)


def test_no_schedule_is_cheaper_than_the_optimum() -> None:
    course = make_even_course(9)
    for tariff in TARIFFS:
        best = find_optimum(course, tariff).bill.total
        for first in range(2, 9):
            for second in range(first + 1, 10):
                bill = price_schedule(course, tariff, (first, second)[: 1 + (second < 9)])
                assert bill is None or best <= bill.total + 1e-12


def test_dropping_the_oldest_breaks_the_prefix_each_time_and_half_seldom() -> None:
    course = make_even_course(60, growth=1_000)
    each, half = truncate(course, TARIFFS[0]).bill, truncate(course, TARIFFS[0], 0.5).bill
    assert each.again > 3 * half.again
    assert each.summary_input == half.summary_output == 0


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


def test_calls_of_redis_are_counted_without_those_that_no_request_causes() -> None:
    counts = {"cmdstat_get": 3, "cmdstat_config|get": 1, "cmdstat_info": 5, "cmdstat_script|load": 2}
    assert parse_calls(counts) == {"get": 3, "script": 2}
    before = RedisFigures({"get": 2, "set": 1}, reads=3, in_bytes=4, out_bytes=5, memory_bytes=6, keys=1)
    after = RedisFigures({"get": 5, "set": 1, "del": 1}, 10, 20, 30, memory_bytes=4, keys=3)
    assert subtract(after, before) == RedisFigures({"get": 3, "del": 1}, 7, 16, 25, -2, 2)


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


_PAGE = """
import asyncio, tempfile
from pathlib import Path
from bench.page import print_page
from bench.subject import find_port, running_gateway, running_stub

with tempfile.TemporaryDirectory() as folder, running_stub() as stub:
    port = find_port()
    with running_gateway(stub, Path(folder), admin_port=port) as product:
        asyncio.run(print_page(product, port, rounds=1, turns=2))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_the_page_is_read_while_the_load_runs() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _PAGE], cwd=_ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    row = ended.stdout.splitlines()[-1].split()
    assert row[0] == "200" and re.fullmatch(r"\d+\.\d{3}", row[3])
    assert int(row[-4]) > 0 and float(row[-3]) > 20
