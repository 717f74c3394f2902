import pytest

from gateway.wire.formats.registry import FORMATS, guess_format, read_counted_format, read_format

_PATHS = [
    ("/v1/chat/completions", "chat"),
    ("/chat/completions", "chat"),
    ("/v1/chat/completions?api-version=1", "chat"),
    ("/v1/responses", "responses"),
    ("/v1/responses/compact", None),
    ("/v1/responses/resp_1", None),
    ("/v1/messages?beta=true", "messages"),
    ("/v1/messages/count_tokens", None),
    ("/v1/chat/completions/", None),
    ("/v1/v1/chat/completions", None),
    ("/v2/chat/completions", None),
    ("/v1", None),
    ("/", None),
    ("", None),
]


@pytest.mark.parametrize(("path", "expected"), _PATHS)
def test_a_format_is_known_by_its_path(path: str, expected: str | None) -> None:
    form = read_format(path)
    assert form is FORMATS.get(expected or "")


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_a_format_is_found_at_its_own_path(form: object) -> None:
    assert [read_format(known.path) for known in FORMATS.values() if known is form] == [form]


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/v1/messages/count_tokens", "messages"), ("/v1/responses/compact", "responses"), ("/v1/models", None)],
)
def test_a_path_belongs_to_an_api_by_its_beginning(path: str, expected: str | None) -> None:
    assert guess_format(path) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/messages/count_tokens", "messages"),
        ("/messages/count_tokens?beta=true", "messages"),
        ("/v1/messages", None),
        ("/v1/chat/completions/count_tokens", None),
        ("/count_tokens", None),
    ],
)
def test_a_request_that_is_only_to_be_counted_is_known_by_its_path(path: str, expected: str | None) -> None:
    assert read_counted_format(path) is FORMATS.get(expected or "")
