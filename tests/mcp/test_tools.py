"""What the tools answer, over originals on a shelf."""

import json
import logging
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mcp.tools import DESCRIPTIONS, HistoryTools, ToolAnswer
from gateway.originals.search import MentionedFile, SearchFailed, SearchImpossible
from gateway.reporting.metrics import Metrics
from gateway.store.keys import make_tag
from gateway.tenants import Tenant
from tests.builders.shelf import Shelf, make_broken_shelf

_RED, _BLUE = Tenant("tenant:red", None, "default"), Tenant("tenant:blue", None, "default")
_RED_TAG, _BLUE_TAG = make_tag(_RED.id), make_tag(_BLUE.id)


def make_shelf() -> Shelf:
    files = [MentionedFile(path="src/a.py", mentions=7, positions=[1, 2, 3, 4, 5, 6, 9])]
    return Shelf(
        originals={(_RED_TAG, "c1"): ["the port is 7431", "x" * 50_000], (_BLUE_TAG, "c2"): ["port 99"]},
        files={(_RED_TAG, "c1"): files},
    )


async def call(
    name: str, arguments: Mapping[str, object], tenant: Tenant = _RED, shelf: Shelf | None = None
) -> ToolAnswer:
    shelf = shelf or make_shelf()
    return await HistoryTools(shelf, shelf.has_originals, Metrics()).call(tenant, name, arguments)


async def test_a_search_gives_pieces_with_their_positions() -> None:
    answer = await call("search_history", {"conversation": "c1", "query": "port"})
    assert answer == ToolAnswer("[message 0, tool, bash]\nthe port is 7431", "found")


async def test_a_search_without_a_hit_says_so() -> None:
    answer = await call("search_history", {"conversation": "c1", "query": "nowhere"})
    assert answer.result == "nothing" and answer.text.startswith("Nothing was found")
    assert not answer.is_error


@pytest.mark.parametrize(
    ("name", "more"),
    [("search_history", {"query": "port"}), ("read_message", {"position": 0}), ("list_files", {})],
)
async def test_the_answer_is_the_same_for_anothers_conversation_and_for_one_that_does_not_exist(
    name: str, more: dict[str, object]
) -> None:
    others = await call(name, {"conversation": "c2", **more})
    nobodys = await call(name, {"conversation": "c3", **more})
    assert others == nobodys and others.is_error
    assert "key" in others.text and "99" not in others.text


async def test_everything_is_looked_up_under_the_tag_of_the_caller() -> None:
    shelf = make_shelf()
    for conversation in ("c1", "c2"):
        await call("search_history", {"conversation": conversation, "query": "port"}, _BLUE, shelf)
        await call("read_message", {"conversation": conversation, "position": 0}, _BLUE, shelf)
        await call("list_files", {"conversation": conversation}, _BLUE, shelf)
    assert {tag for tag, _ in shelf.asked} == {_BLUE_TAG} and len(shelf.asked) == 6


async def test_a_long_message_is_read_in_parts_that_join() -> None:
    shelf, read, start = Shelf(originals={(_RED_TAG, "c1"): ["".join(map(str, range(12_000)))]}), "", 0
    while True:
        answer = await call(
            "read_message", {"conversation": "c1", "position": 0, "start": start}, shelf=shelf
        )
        head, _, rest = answer.text.partition("\n")
        assert head.startswith(f"[message 0, tool, bash; characters {start} to ")
        text, mark, note = rest.partition("\n[")
        read += text
        if not mark:
            break
        start = int(note.rpartition("start=")[2].rstrip("]"))
    assert read == shelf.originals[_RED_TAG, "c1"][0]


async def test_a_message_that_is_not_kept_is_no_error_in_a_conversation_that_is() -> None:
    answer = await call("read_message", {"conversation": "c1", "position": 7})
    assert answer == ToolAnswer("No original of message 7 is kept.", "nothing")


async def test_files_are_listed_with_their_newest_messages() -> None:
    answer = await call("list_files", {"conversation": "c1"})
    assert answer == ToolAnswer("src/a.py (7 times, in messages 3, 4, 5, 6, 9)", "found")


async def test_a_list_of_files_is_bounded() -> None:
    shelf = make_shelf()
    shelf.files[_RED_TAG, "c1"] = [
        MentionedFile(path=f"{number}/" + "d" * 1_000, mentions=1, positions=[1]) for number in range(200)
    ]
    text = (await call("list_files", {"conversation": "c1"}, shelf=shelf)).text
    assert len(text) < 21_000 and "(once, in message 1)\n" in text
    shown = text.count("/ddd")
    assert 0 < shown < 200 and text.endswith(f"[{200 - shown} more files are left out]")


@pytest.mark.parametrize("written", ["c1", " c1\n", "`c1`", '"c1".', "<c1>"])
async def test_what_a_model_puts_around_an_id_is_no_part_of_it(written: str) -> None:
    assert (await call("search_history", {"conversation": written, "query": "port"})).result == "found"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("search_history", {}),
        ("search_history", {"conversation": "c1"}),
        ("search_history", {"conversation": "c1", "query": ""}),
        ("search_history", {"conversation": "c1", "query": "secret " * 1_000}),
        ("search_history", {"conversation": "c1", "query": ["secret"]}),
        ("search_history", {"conversation": "c1:secret", "query": "port"}),
        ("search_history", {"conversation": "*", "query": "port"}),
        ("read_message", {"conversation": "c1", "position": -1}),
        ("read_message", {"conversation": "c1", "position": 1 << 70}),
        ("read_message", {"conversation": "c1", "position": "secret"}),
        ("list_files", {"conversation": 7}),
    ],
)
async def test_wrong_arguments_are_an_error_that_quotes_nothing(
    name: str, arguments: dict[str, object]
) -> None:
    answer = await call(name, arguments)
    assert answer.is_error and answer.text.startswith("Wrong arguments: ")
    assert "secret" not in answer.text


async def test_numbers_may_be_written_as_texts() -> None:
    assert (await call("read_message", {"conversation": "c1", "position": "0"})).result == "found"


async def test_another_tool_is_an_error_that_names_those_there_are() -> None:
    answer = await call("delete_everything", {})
    assert answer.is_error
    assert all(each.name in answer.text for each in DESCRIPTIONS)


async def test_a_store_that_is_away_and_a_fault_of_ours_are_told_in_plain_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = {"conversation": "c1", "query": "port"}
    away = await call("search_history", asked, shelf=make_broken_shelf())
    fault = await call("search_history", asked, shelf=Shelf(error=ValueError("secret text")))
    assert away.text == "The originals cannot be read now. Try again later." and away.is_error
    assert fault.text == "The gateway failed on this call." and fault.is_error
    assert "ValueError" in caplog.text and "secret" not in caplog.text


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SearchFailed("the query took too long"), "The originals cannot be read now. Try again later."),
        (SearchImpossible("no such module"), "Originals cannot be searched in this gateway."),
    ],
)
@pytest.mark.parametrize(
    ("name", "more"),
    [("search_history", {"query": "port"}), ("read_message", {"position": 0}), ("list_files", {})],
)
async def test_a_search_that_failed_is_not_said_to_have_found_nothing(
    error: Exception, said: str, name: str, more: dict[str, object]
) -> None:
    answer = await call(name, {"conversation": "c1", **more}, shelf=Shelf(error=error))
    assert answer == ToolAnswer(said, "failed")


async def test_without_a_search_every_tool_says_so() -> None:
    tools = HistoryTools(None, make_shelf().has_originals, Metrics())
    answer = await tools.call(_RED, "list_files", {"conversation": "c1"})
    assert answer == ToolAnswer("Originals cannot be searched in this gateway.", "failed")


async def test_a_call_is_logged_and_counted_without_what_was_asked(caplog: pytest.LogCaptureFixture) -> None:
    shelf, metrics = make_shelf(), Metrics()
    tools = HistoryTools(shelf, shelf.has_originals, metrics)
    with caplog.at_level(logging.INFO, logger="gateway.mcp"):
        await tools.call(_RED, "search_history", {"conversation": "c1", "query": "port"})
        await tools.call(_RED, "search_history", {"conversation": "c1", "query": "secret"})
        await tools.call(_RED, "search_history", {"conversation": "secret", "query": "secret"})
        await tools.call(_RED, "secret", {"secret": "secret"})
        await tools.call(_RED, "list_files", {"conversation": "c1"})
    assert [record.getMessage().partition(" seconds=")[0] for record in caplog.records] == [
        "call tool=search_history tenant=red result=found",
        "call tool=search_history tenant=red result=nothing",
        "call tool=search_history tenant=red result=failed",
        "call tool=- tenant=red result=failed",
        "call tool=list_files tenant=red result=found",
    ]
    rendered = metrics.render().decode()
    for result in ("found", "nothing", "failed"):
        assert f'gateway_recall_searches_total{{result="{result}",way="mcp"}} 1.0' in rendered


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
_NAMES = st.sampled_from([*(each.name for each in DESCRIPTIONS), "other"])


@given(_NAMES, st.dictionaries(st.sampled_from(["conversation", "query", "position", "start", "x"]), _JSON))
async def test_no_arguments_make_it_raise(name: str, arguments: dict[str, object]) -> None:
    answer = await call(name, arguments)
    assert answer.text and json.loads(json.dumps(answer.text)) == answer.text


@given(st.text(st.characters(codec=None)), st.text(st.characters(codec=None)))
async def test_any_text_can_be_searched_and_any_text_found(original: str, query: str) -> None:
    shelf = Shelf(originals={(_RED_TAG, "c1"): [original]})
    answer = await call("search_history", {"conversation": "c1", "query": query}, shelf=shelf)
    assert answer.text.encode().decode() == answer.text


def test_descriptions_name_their_arguments_and_what_is_required() -> None:
    schemas = {each.name: each.schema for each in DESCRIPTIONS}
    assert {name: list(schema["properties"]) for name, schema in schemas.items()} == {  # type: ignore[call-overload]
        "search_history": ["conversation", "query"],
        "read_message": ["conversation", "position", "start"],
        "list_files": ["conversation"],
    }
    assert [schema["required"] for schema in schemas.values()] == [
        ["conversation", "query"],
        ["conversation", "position"],
        ["conversation"],
    ]
