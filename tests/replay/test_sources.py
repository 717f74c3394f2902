"""Which files are recordings."""

from pathlib import Path

import pytest

from gateway.replay.errors import ReplayError
from gateway.replay.sources import find_sources, read_source
from tests.replay.samples import make_transcript, write_json, write_lines

_ENTRY = {"body": {"model": "m", "messages": [{"role": "user", "content": "hello"}]}}


def test_folders_are_walked_and_other_files_are_named_with_a_reason(tmp_path: Path) -> None:
    write_json(tmp_path / "a" / "one.json", make_transcript(1))
    write_json(tmp_path / "b" / "deep" / "two.json", make_transcript(1))
    write_json(tmp_path / "package.json", {"name": "x"})
    (tmp_path / "notes.md").write_text("no suffix of a recording", "utf-8")
    sources = find_sources([tmp_path])
    assert [source.name for source in sources.found] == ["a/one", "b/deep/two"]
    assert [(path.name, "'name'" in why) for path, why in sources.unreadable] == [("package.json", True)]


def test_files_of_one_request_each_make_one_recording_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        body = _ENTRY["body"] | {"model": f"m{number}"}
        write_json(tmp_path / "log" / f"{number}.json", {"body": body})
    write_json(tmp_path / "log" / "other.json", make_transcript(1))
    names = {source.name: source for source in find_sources([tmp_path / "log"]).found}
    assert len(names) == 2
    log = next(source for source in names.values() if len(source.files) == 3)
    requests = [*read_source(log, "").list_requests()]
    assert [
        b"m%d" % number in request.body for number, request in zip((1, 2, 10), requests, strict=True)
    ] == [True] * 3
    assert log.size_bytes == sum(path.stat().st_size for path in log.files)


def test_a_named_file_must_be_a_recording(tmp_path: Path) -> None:
    path = write_json(tmp_path / "settings.json", {"listen": {}})
    with pytest.raises(ReplayError, match=r"settings\.json: this is no recording: .*'listen'"):
        find_sources([path])
    with pytest.raises(ReplayError, match="there is no such file"):
        find_sources([tmp_path / "missing"])
    with pytest.raises(ReplayError, match=r"no recording found\n.*settings\.json"):
        find_sources([tmp_path])


def test_lines_of_one_file_are_one_recording(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.jsonl", [_ENTRY, _ENTRY])
    source = find_sources([path]).found[0]
    assert (source.name, read_source(source, "").count) == ("log", 2)
