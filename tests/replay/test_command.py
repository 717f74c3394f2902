"""`refold replay`, from its options to what it prints."""

import io
import json
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console

from gateway.command_line.options import parse_arguments
from gateway.replay.command import run_replay
from tests.replay.samples import CHARS, MODEL, make_transcript, write_json

_PRICES = f"models: [{{match: {MODEL}, price: {{input: 1, cached: 0.1, output: 5}}}}]\n"


def _run(folder: Path, *arguments: str, settings: str = CHARS + _PRICES) -> tuple[int, str, str]:
    """Status, output and errors."""
    config = folder / "gateway.yaml"
    config.write_text(settings, "utf-8")
    console, errors = Console(file=io.StringIO(), width=80), Console(file=io.StringIO(), width=80)
    options = parse_arguments(["replay", *arguments, "--config", str(config)])
    status = run_replay(options, {}, console, errors)
    assert isinstance(console.file, io.StringIO)
    assert isinstance(errors.file, io.StringIO)
    return status, console.file.getvalue(), errors.file.getvalue()


def test_it_shows_chart_events_sessions_and_policies_in_80_columns(tmp_path: Path) -> None:
    path = write_json(tmp_path / "session.json", make_transcript(60))
    chosen = ["--policy", "default", "--policy", "small", "--window", "16000"]
    status, output, errors = _run(tmp_path, str(path), *chosen)
    assert (status, errors) == (0, "")
    lines = output.splitlines()
    assert max(map(len, lines)) <= 80
    for part in ("tokens of each request", "summary of", "conversation", "all sessions", "prefix reuse with"):
        assert part in output
    assert "Simulated: nothing was sent." in output
    assert "MB/s" in output


def test_json_is_one_value_with_nothing_beside_it(tmp_path: Path) -> None:
    path = write_json(tmp_path / "session.json", make_transcript(3))
    status, output, _ = _run(tmp_path, str(path), "--json")
    value = json.loads(output)
    assert status == 0
    assert value["policies"][0]["policy"] == "as configured"


def test_a_chart_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    path, chart = write_json(tmp_path / "session.json", make_transcript(3)), tmp_path / "chart.svg"
    status, _, errors = _run(tmp_path, str(path), "--svg", str(chart))
    assert status == 0
    assert "chart.svg" in errors.replace("\n", "")
    assert ElementTree.fromstring(chart.read_text("utf-8")).tag.endswith("svg")


def test_what_is_missing_for_a_full_answer_is_said(tmp_path: Path) -> None:
    path = write_json(tmp_path / "session.json", make_transcript(3) | {"model": "nobody-knows"})
    _, output, _ = _run(tmp_path, str(path))
    text = " ".join(output.split())
    assert "No window is known for the models of these recordings" in text
    assert "4 requests are of models without a price: try --price MODEL" in text


def test_wrong_usage_ends_with_status_2_and_one_sentence(tmp_path: Path) -> None:
    path = write_json(tmp_path / "session.json", make_transcript(1))
    for arguments, words in (
        ([str(tmp_path / "missing")], "there is no such file"),
        ([str(path), "--policy", "nope"], "no policy 'nope'"),
        ([str(path), "--window", "500"], "--window 500 is a number of tokens, so 128K is written 128000"),
        ([str(path), "--price", "nobody-knows"], "no price is known for 'nobody-knows'"),
    ):
        status, output, errors = _run(tmp_path, *arguments)
        assert (status, output) == (2, "")
        assert words in " ".join(errors.split())
        assert "Traceback" not in errors


def test_a_recording_without_a_model_is_taken_for_the_priced_one(tmp_path: Path) -> None:
    transcript = make_transcript(2)
    del transcript["model"]
    path = write_json(tmp_path / "session.json", transcript)
    _, output, _ = _run(tmp_path, str(path), "--price", MODEL, "--json")
    run = json.loads(output)["sessions"][0]["played"][0]["requests"][0]
    assert run["model"] == MODEL
