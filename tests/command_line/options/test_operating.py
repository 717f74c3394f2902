"""The options of `conversations` and `top`."""

import pytest

from gateway.admin.operations import MOST_FOUND
from gateway.command_line.options import parse_arguments


def test_a_list_takes_filters() -> None:
    words = ["conversations", "list", "--tenant", "t", "--model", "m*", "--search", "x", "--limit", "7"]
    options = parse_arguments([*words, "--json", "--admin-port", "9"])
    assert (options.tenant, options.model, options.search, options.limit) == ("t", "m*", "x", 7)
    assert options.json and options.admin_port == 9
    assert parse_arguments(["conversations", "list"]).limit == 50


def test_one_conversation_needs_its_id() -> None:
    for action in ("show", "compact", "delete"):
        assert parse_arguments(["conversations", action, "3f"]).id == "3f"
        with pytest.raises(SystemExit):
            parse_arguments(["conversations", action])


def test_a_search_needs_words() -> None:
    options = parse_arguments(["conversations", "search", "3f", "retry", "of", "--limit", "7", "--json"])
    assert (options.id, options.query, options.limit, options.json) == ("3f", ["retry", "of"], 7, True)
    with pytest.raises(SystemExit):
        parse_arguments(["conversations", "search", "3f"])


def test_a_search_finds_as_many_pieces_as_the_admin_api_gives(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["conversations", "search", "3f", "retry", "--limit"]
    assert parse_arguments([*words, str(MOST_FOUND)]).limit == MOST_FOUND
    with pytest.raises(SystemExit) as caught:
        parse_arguments([*words, str(MOST_FOUND + 1)])
    assert caught.value.code == 2 and "must be 50 at most" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["conversations"], ["conversations", "show"], ["conversations", "search"], ["top"]],
)
def test_their_help_fits_a_terminal(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        parse_arguments([*words, "--help"])
    shown = capsys.readouterr().out
    assert caught.value.code == 0 and max(map(len, shown.splitlines())) <= 80
