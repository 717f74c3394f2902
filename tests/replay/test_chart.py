"""The chart in the terminal."""

from gateway.replay.chart import render_chart
from tests.replay.samples import make_run


def test_the_chart_fits_its_columns_and_marks_what_happened() -> None:
    runs = [
        make_run(received=100 * at, sent=100 * at if at < 50 else 1_000, window=6_000, soft=3_000, hard=4_000)
        for at in range(1, 200)
    ]
    runs[50] = make_run(received=5_000, sent=1_000, change="compaction", window=6_000, soft=3_000, hard=4_000)
    runs[120] = make_run(received=9_000, sent=1_000, change="pruning", window=6_000, soft=3_000, hard=4_000)
    lines = render_chart(runs, 80).plain.split("\n")
    assert max(map(len, lines)) <= 80
    marks = lines[-2]
    assert marks.count("C") == 1
    assert marks.count("P") == 1
    assert marks.index("C") < marks.index("P")
    assert any("hard" in line and "╌" in line for line in lines)
    assert any("soft" in line for line in lines)
    assert "▲" in lines[0], "received tokens beyond the scale are shown as such"
    assert lines[0].split()[0] == "7.50K"


def test_a_taller_bar_holds_more_tokens() -> None:
    chart = render_chart([make_run(received=1_000, sent=100), make_run(received=1_000, sent=900)], 40)
    columns = [*zip(*[line[8:10] for line in chart.plain.split("\n")[:10]], strict=True)]
    assert columns[0].count("█") < columns[1].count("█")
    assert columns[0].count("█") + columns[0].count("░") == 10


def test_no_request_makes_no_chart() -> None:
    assert render_chart([], 80).plain == ""
