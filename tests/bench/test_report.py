from pathlib import Path

from bench.report import render_section, with_section, written_to_report


def test_a_new_part_is_added_at_the_end() -> None:
    report = with_section("# Benchmarks\n", "speed", "## speed\n\nfast\n")
    assert report == "# Benchmarks\n\n## speed\n\nfast\n"


def test_a_part_replaces_its_own_section_and_no_other() -> None:
    report = "# Benchmarks\n\n## speed\n\nslow\n\n## memory\n\nsmall\n"
    assert with_section(report, "speed", "## speed\n\nfast\n") == (
        "# Benchmarks\n\n## speed\n\nfast\n\n## memory\n\nsmall\n"
    )
    assert with_section(report, "memory", "## memory\n\nlarge\n").endswith("slow\n\n## memory\n\nlarge\n")


def test_a_section_names_the_command_and_shows_what_it_printed() -> None:
    section = render_section("sse", "\nevents  1.2\n")
    assert section.startswith("## sse\n\n`python -m bench sse`, ")
    assert section.endswith("\n\n```\nevents  1.2\n```\n")


def test_what_is_printed_meanwhile_is_written(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks.md"
    for figure in ("1.2", "1.3"):
        with written_to_report("sse", path):
            print(f"events  {figure}")  # noqa: T201 - the subject of this test
    text = path.read_text("utf-8")
    assert text.startswith("# Benchmarks\n")
    assert text.count("## sse") == 1
    assert "events  1.3" in text and "events  1.2" not in text
