from pathlib import Path

import pytest

from gateway.settings import Log, Traces
from tests.builders.settings import PLAIN, assert_refused, load_text


def test_without_a_word_the_log_is_text_and_there_are_no_traces(tmp_path: Path) -> None:
    settings = load_text(tmp_path, PLAIN)
    assert settings.log == Log(format="text", level="info")
    assert settings.traces == Traces(endpoint=None)


@pytest.mark.parametrize(
    "url",
    ["http://otel:4318", "http://otel:4318/", "http://otel:4318/v1/traces", "http://otel:4318/v1/traces/"],
)
def test_the_address_of_a_collector_is_enough(tmp_path: Path, url: str) -> None:
    settings = load_text(tmp_path, f"{PLAIN}traces: {{endpoint: '{url}', headers: {{x-key: abc}}}}\n")
    assert settings.traces.endpoint == "http://otel:4318/v1/traces"
    assert "abc" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("log: {format: xml}\n", "log.format"),
        ("log: {level: loud}\n", "log.level"),
        ("traces: {endpoint: 'otel:4318'}\n", "traces.endpoint: must be http://HOST"),
        ("traces: {endpoint: 'http://u:hunter2@otel'}\n", "must not contain a user or password"),
        ("traces: {sample: 2}\n", "traces.sample"),
        ("traces: {headers: {x-key: 'a b'}}\n", "must not contain spaces"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, text: str, expected: str) -> None:
    assert_refused(tmp_path, PLAIN + text, PLAIN.count("\n") + 1, expected)
