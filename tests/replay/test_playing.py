"""Sources in one process or in several."""

from pathlib import Path

import pytest

from gateway.replay.playing import count_processes, play_all
from gateway.replay.policies import choose_settings
from gateway.replay.sources import FoundSources, Source, find_sources
from tests.replay.samples import CHARS, MODEL, load, make_transcript, play, write_json


def _find(folder: Path) -> FoundSources:
    for number, turns in enumerate((3, 30, 8)):
        write_json(folder / f"{number}.json", make_transcript(turns))
    return find_sources([folder / f"{number}.json" for number in range(3)])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_several_processes_find_what_one_finds(tmp_path: Path) -> None:
    paths = [source.files[0] for source in _find(tmp_path).found]
    alone, apart = play(paths, tmp_path), play(paths, tmp_path, processes=2)
    assert alone == apart
    assert [source.number for source in apart] == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("processes", [1, 2])
def test_progress_adds_up_to_the_bytes_of_all_files(tmp_path: Path, processes: int) -> None:
    sources = _find(tmp_path).found
    told: list[int] = []
    choices = choose_settings(load(CHARS, tmp_path), ["default"], 16_000)
    play_all(sources, choices, MODEL, told.append, processes)
    assert sum(told) == sum(source.size_bytes for source in sources)
    assert len(told) > len(sources)


def test_a_file_that_has_changed_meanwhile_is_reported(tmp_path: Path) -> None:
    sources = _find(tmp_path).found
    sources[1].files[0].write_text("gone", "utf-8")
    choices = choose_settings(load(CHARS, tmp_path), ["default"], 16_000)
    played = play_all(sources, choices, MODEL, lambda _: None)
    assert [source.failure is None for source in played] == [True, False, True]
    assert "no JSON object" in (played[1].failure or "")


def test_little_is_played_in_one_process() -> None:
    assert count_processes([Source("a", (), 10), Source("b", (), 10)]) == 1
    assert count_processes([Source("a", (), 1 << 30)]) == 1
