"""The tables of `tests/tables`, row by row: what a text, a call, a report or a window means."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.core.compaction.manual import parse_compact
from gateway.core.compaction.summary import find_headings, has_headings, strip_thinking
from gateway.core.digest.facts import find_facts, is_secret
from gateway.core.economy import Rates, choose_rates, with_cache
from gateway.core.history.message import Call, Message
from gateway.core.history.transcript import TranscriptEntry, without_blocks
from gateway.core.limits.model_limits import Limits
from gateway.core.limits.thresholds import RequestSize, choose_thresholds
from gateway.core.money import Price, count_usd
from gateway.core.policy import Policy
from gateway.core.refusal import (
    Overflow,
    Refusal,
    parse_byte_limit,
    parse_image_limit,
    parse_overflow,
    parse_token_numbers,
    without_quotations,
)
from gateway.core.session.commands import may_change_files
from gateway.core.session.outcomes import find_exit_code, is_done
from gateway.core.session.reader import SessionReader
from gateway.core.session.titles import make_title, parse_title_reply
from gateway.core.session.tool_arguments import find_paths
from gateway.core.session.work import FileChange, SessionWork, list_touched_files
from gateway.core.session.written_calls import find_written_calls
from gateway.core.sizing.usage import Usage
from gateway.settings import load_settings
from gateway.wire.usage import find_timings, find_usage, merge_usage

Row = dict[str, Any]
_TABLES = Path(__file__).parent.parent / "tables"
_TEMPLATE = "Write it.\n\n## Goal\nWhat?\n\n## Next step\nThen?\n\n### Files \n#no heading\n- ## nor this"
_TAGS = re.compile("<(a|b)>")


@cache
def load_table(name: str) -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load((_TABLES / f"{name}.yaml").read_text("utf-8"))
    return table


def rows(name: str, section: str) -> pytest.MarkDecorator:
    found = load_table(name)[section]
    return pytest.mark.parametrize("row", found, ids=range(len(found)))


# refusals.yaml


@rows("refusals", "overflows")
def test_an_answer_is_an_overflow_of_this_kind_with_these_numbers(row: Row) -> None:
    said = [row["says"]] if isinstance(row["says"], str) else row["says"]
    found = parse_overflow(Refusal(row.get("status", 400), tuple(said), is_empty=row.get("is_empty", False)))
    assert found == (Overflow(**row["means"]) if row["means"] is not None else None)


@rows("refusals", "others")
@pytest.mark.parametrize("status", [200, 400, 413, 422, 500])
def test_an_answer_about_something_else_is_no_overflow(row: Row, status: int) -> None:
    assert [said for said in row["says"] if parse_overflow(Refusal(status, (said,)))] == []


@rows("refusals", "numbers")
def test_each_number_of_a_refusal_has_its_meaning(row: Row) -> None:
    numbers = parse_token_numbers(row["says"])
    read: dict[str, Callable[[str], Any]] = {
        "tokens": lambda text: {
            name: value for name, value in asdict(numbers).items() if value and name != "kind"
        },
        "images": parse_image_limit,
        "bytes": parse_byte_limit,
    }
    (what,) = row.keys() - {"says"}
    assert read[what](row["says"]) == row[what]


@rows("refusals", "quotations")
def test_the_quoted_words_of_a_user_are_taken_out(row: Row) -> None:
    assert without_quotations(row["says"]) == row["leaves"]


# usage.yaml and prices.yaml


@rows("usage", "reports")
def test_a_report_of_usage_means_these_tokens(row: Row) -> None:
    if "timings" in row:
        found = find_timings(row["timings"])
    else:
        found = find_usage(merge_usage(row["usage"], row["later"]) if "later" in row else row["usage"])
    assert found == (Usage(**row["means"]) if row["means"] is not None else None)


@rows("prices", "costs")
def test_each_kind_of_token_costs_its_price(row: Row) -> None:
    assert count_usd(Price(**row["price"]), Usage(**row["usage"])) == pytest.approx(row["usd"])


@rows("prices", "rates")
def test_rates_are_prices_beside_fresh_input(row: Row) -> None:
    found = choose_rates(Price(**row["price"]))
    assert found == Rates(**row["rates"])
    assert found.caches == (found.read < 1)
    assert with_cache(found) == found


# thresholds.yaml


def load_policy(folder: Path, written: object) -> Policy:
    path = folder / "gateway.yaml"
    path.write_text(f"policies: {{p: {json.dumps(written)}}}\n", "utf-8")
    return load_settings(path, {}).policies["p"]


@pytest.mark.system(1, 9, 12)
@rows("thresholds", "thresholds")
def test_a_request_has_these_thresholds(row: Row, tmp_path: Path) -> None:
    policy = load_policy(tmp_path, row.get("policy", {}))
    found = choose_thresholds(policy, Limits(**row["limits"]), RequestSize(**row.get("request", {})))
    assert (found and {name: getattr(found, name) for name in row["are"]}) == row["are"]


# tools.yaml


def read_call(row: Row, result: str = "ok") -> SessionWork:
    """One call and its result."""
    given = row["arguments"]
    arguments = given if isinstance(given, str) else json.dumps(given)
    called = TranscriptEntry("assistant", "", ((row["tool"], arguments),), 0)
    is_error = row.get("is_error", False)
    said = TranscriptEntry("tool", row.get("result", result), (), 0, is_result=True, is_error=is_error)
    reader = SessionReader()
    reader.feed(0, Message("assistant", b"", b"", 0, calls=(Call("1", row["tool"]),)), called)
    reader.feed(1, Message("tool", b"", b"", 0, results=("1",)), said)
    return reader.work()


def list_changes(work: SessionWork) -> list[list[Any]]:
    changes = [
        (each.path, each.kind, each.additions, each.deletions, each.moved_from) for each in work.changes
    ]
    return [list(change if change[-1] else change[:-1]) for change in changes]


@pytest.mark.system(20)
@rows("tools", "calls")
def test_a_call_changes_these_files(row: Row) -> None:
    assert list_changes(read_call(row)) == row["changes"]


@rows("tools", "commands")
def test_a_call_runs_these_commands(row: Row) -> None:
    assert [[run.command, run.exit_code] for run in read_call(row, "").commands] == row["runs"]


@rows("tools", "shell")
def test_a_shell_passes_patches_on(row: Row) -> None:
    call = {"tool": "Bash", "arguments": {"command": row["command"]}}
    work = read_call(call, "Exit code: 0\nOutput:\n")
    assert (list_changes(work), bool(work.commands)) == (row["changes"], row["is_run"])
    assert list_changes(read_call(call, "Exit code: 1\nOutput:\nbad patch")) == []


@rows("tools", "may_change")
def test_a_command_may_change_files_or_not(row: Row) -> None:
    assert may_change_files(row["command"]) == row["may_change"]


@rows("tools", "codes")
def test_the_exit_code_is_what_the_agent_says_and_not_what_the_command_printed(row: Row) -> None:
    assert find_exit_code(row["result"]) == row["code"]


@rows("tools", "done")
def test_an_edit_counts_if_its_result_says_so_or_says_nothing(row: str) -> None:
    assert is_done(row, is_error=False) and not is_done(row, is_error=True)


@rows("tools", "not_done")
def test_an_edit_that_failed_or_whose_result_is_gone_does_not_count(row: str) -> None:
    assert not is_done(row, is_error=False)


@rows("tools", "written")
def test_calls_that_stand_in_a_text_are_found(row: Row) -> None:
    found = [
        {"tool": call.tool, "arguments": json.loads(call.arguments), "needs_result": call.needs_result}
        for call in find_written_calls(row["text"])
    ]
    assert found == row["calls"]


@rows("tools", "todos")
def test_a_list_of_things_to_do_is_read(row: Row) -> None:
    assert [[todo.text, todo.is_in_progress] for todo in read_call(row).todos] == row["open"]


@rows("tools", "touched")
def test_the_files_of_a_session_add_their_changes_up(row: Row) -> None:
    changes = [
        FileChange(
            position=0, path=path, kind=kind, additions=more, deletions=less, moved_from=next(iter(old), None)
        )
        for path, kind, more, less, *old in row["changes"]
    ]
    found = [
        [file.path, file.kind, file.changes, file.additions, file.deletions, file.unknown]
        + ([file.moved_from] if file.moved_from else [])
        for file in list_touched_files(changes)
    ]
    assert found == row["files"]


# texts.yaml

_READERS: dict[str, Callable[[Any], Any]] = {
    "facts": lambda text: list(find_facts(text)),
    "is_secret": is_secret,
    "without_thinking": strip_thinking,
    "has_headings": lambda text: has_headings(text, find_headings(_TEMPLATE)),
    "title": make_title,
    "title_of_a_reply": parse_title_reply,
    "without_blocks": lambda text: without_blocks(text, _TAGS),
    "compact_instructions": parse_compact,
    "paths_of_arguments": lambda value: list(find_paths(value)),
}


@pytest.mark.parametrize("what", _READERS)
def test_a_text_has_this_meaning(what: str) -> None:
    read = _READERS[what]
    wrong = [
        (row, found)
        for row in load_table("texts")[what]
        if (found := read(row["text"] if "text" in row else row["value"])) != row["is"]
    ]
    assert wrong == []


def test_every_section_of_the_texts_has_a_reader() -> None:
    assert load_table("texts").keys() == _READERS.keys()
