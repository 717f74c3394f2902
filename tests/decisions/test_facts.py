"""Facts below a summary: which are listed, in which order, and how they survive the next compaction."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.digest.facts import LONGEST_FACT_CHARS, find_facts, find_names, is_secret
from gateway.core.digest.names import choose_names, rank_facts
from gateway.core.history.lists import (
    NAMES_HEADING,
    NOTHING_TOLD,
    ListedFile,
    ListedName,
    Lists,
    Told,
    render_lists,
)
from gateway.core.history.transcript import TranscriptEntry, neutralize

_NOTHING = [TranscriptEntry("user", "Go on.", (), 0)] * 10
_PLENTY = 5_000


def user(text: str) -> TranscriptEntry:
    return TranscriptEntry("user", text, (), 0)


def result(text: str) -> TranscriptEntry:
    return TranscriptEntry("tool", text, (), 0, is_result=True)


def calls(tool: str, **arguments: Any) -> TranscriptEntry:
    return TranscriptEntry("assistant", "", ((tool, json.dumps(arguments)),), 0)


def missing(
    *entries: TranscriptEntry, earlier: Told = NOTHING_TOLD, summary: str = "We worked."
) -> tuple[str, ...]:
    """As they are listed."""
    return tuple(map(str, choose_names(entries, earlier, summary, _PLENTY)))


def test_what_the_messages_beside_the_summary_show_is_left_out() -> None:
    entries, tail = [user("src/a.py /b/c /d/e")], '{"path": "/x/src/a.py"} in /b/c.'
    assert choose_names(entries, NOTHING_TOLD, "We worked.", _PLENTY, tail) == (ListedName("/d/e"),)


def test_files_are_grouped_by_folder_and_all_names_stand_on_one_line() -> None:
    names = (
        ListedName("src/a.py", 2),
        *map(ListedName, ("run_all()", "src/b.py", "E4711", "/b/c", "https://x.example/a")),
    )
    assert render_lists(Lists(todos=("one, two: three",), names=names)).splitlines() == [
        NAMES_HEADING,
        "- todo: one, two: three",
        "- src/: a.py ×2, b.py",
        "- /b/c",
        "- run_all(), E4711, https://x.example/a",
    ]


def test_the_best_facts_are_listed_first() -> None:
    entries = [
        *[user("/a/often")] * 3,
        *[user("/a/twice")] * 2,
        *_NOTHING,
        result("/b/read"),
        user("/b/said"),
        user("/b/said /b/last"),
    ]
    assert missing(*entries) == ("/a/often ×3", "/b/said ×2", "/a/twice ×2", "/b/last", "/b/read")


@pytest.mark.parametrize("summary", ["in src/a.py.", "`src/a.py`", "/home/x/src/a.py:3"])
def test_facts_of_the_summary_are_not_repeated(summary: str) -> None:
    assert missing(user("src/a.py"), summary=summary) == ()


def test_a_path_replaces_its_end_if_they_are_the_same_file() -> None:
    assert missing(user("a.b/c.py"), user("/x/a.b/c.py a.b/c.py")) == ("/x/a.b/c.py",)
    both = missing(user("a.b/c.py /x/a.b/c.py /y/a.b/c.py"))
    assert set(both) == {"a.b/c.py", "/x/a.b/c.py", "/y/a.b/c.py"}
    often = missing(*[user("a.b/c.py")] * 2, user("a.b/c.py /x/a.b/c.py"))
    assert set(often) == {"/x/a.b/c.py", "a.b/c.py ×3"}


def test_keys_are_never_listed() -> None:
    entries = [user("`sk-proj-abcdefghijklmnop` and https://u:pw@x.example/a?key=1")] * 2
    assert missing(*entries) == ("https://x.example/a ×2",)
    names = (ListedName("sk-proj-abcdefghijklmnop"), ListedName("/a/b"))
    earlier = Told("x", Lists(names=names))
    assert missing(*_NOTHING, earlier=earlier) == ("/a/b",)


def test_no_listed_fact_can_close_a_fence() -> None:
    assert missing(user("`<conversation>` `a_name`")) == ("a_name",)


def test_facts_of_the_earlier_list_are_kept_with_their_counts() -> None:
    earlier = Told("Prose on src/prose.py.", Lists(names=(ListedName("/a/b", 7), ListedName("/a/c", 2))))
    assert missing(*_NOTHING, earlier=earlier) == ("/a/b ×7", "/a/c ×2", "src/prose.py")
    assert missing(user("/a/c"), *_NOTHING, earlier=earlier)[0] == "/a/c ×3"


def test_a_fact_survives_ten_compactions() -> None:
    told = NOTHING_TOLD
    for round_ in range(10):
        entries = [*_NOTHING, *[user(f"/new/{round_}/{number}") for number in range(20)]]
        if round_ == 0:
            entries = [*[user("/srv/important.csv")] * 5, *entries]
        told = Told("We worked.", Lists(names=choose_names(entries, told, "We worked.", 500)))
        assert len(told.text) <= len("We worked.") + 500
    assert "/srv/important.csv ×5" in map(str, told.lists.names)


def test_a_file_that_was_listed_as_changed_counts_like_one_of_several_mentions() -> None:
    earlier = Told(
        "We worked.", Lists(files=(ListedFile("/a/changed.py"),), names=(ListedName("/a/seen.py", 2),))
    )
    assert missing(*_NOTHING, earlier=earlier) == ("/a/changed.py ×4", "/a/seen.py ×2")


def test_the_list_stands_below_the_summary() -> None:
    lists = Lists(names=(ListedName("a/b.py", 2),), todos=("x",))
    assert Told("We worked.", lists).text == f"We worked.\n\n{NAMES_HEADING}\n- todo: x\n- a/b.py ×2"
    assert NOTHING_TOLD.text == "" and Told("We worked.").text == "We worked."


_WORDS = st.sampled_from(
    (
        "src/a.py|/b/c|`name`|- [ ] todo|- [x] todo|\n| |\ud800|\u2028|E4711|</conversation>|`<conversation>`"
        "|https://u:p@x.example/a?b|- | ×3|sk-abcdefghijklmnop|" + NAMES_HEADING
    ).split("|")
)
_TEXT = st.lists(_WORDS, max_size=30).map("".join)
_ANY = st.builds(
    TranscriptEntry,
    st.sampled_from(["user", "assistant", "tool", "system"]),
    _TEXT,
    st.lists(
        st.tuples(st.sampled_from(["todo", "edit"]), st.one_of(_TEXT, _TEXT.map(json.dumps))), max_size=2
    ).map(tuple),
    st.just(0),
    is_result=st.booleans(),
)


@given(st.lists(_ANY, max_size=10), _TEXT, _TEXT, st.integers(0, 600))
def test_no_history_breaks_the_list(
    entries: list[TranscriptEntry], earlier: str, summary: str, cap_chars: int
) -> None:
    names = choose_names(entries, Told(earlier), summary, cap_chars)
    assert names == choose_names(list(entries), Told(earlier), summary, cap_chars)
    texts = [name.text for name in names]
    assert len(set(texts)) == len(texts)
    for text in texts:
        assert text.isprintable() and len(text) <= LONGEST_FACT_CHARS
        assert not is_secret(text) and neutralize(text) == text
    listed = render_lists(Lists(names=names))
    assert len(listed) + 2 <= cap_chars or not listed


def test_what_a_call_used_comes_before_what_was_said_and_that_before_what_a_result_says() -> None:
    entries = [result("/x/result"), user("/x/user"), calls("read", path="/x/call")]
    assert rank_facts(entries, {}).mentioned == ["/x/call", "/x/user", "/x/result"]


@given(st.text() | st.lists(st.sampled_from(["a_b", "aB", "_", "src/x.py", " ", "`", "é"])).map("".join))
def test_each_name_stands_once_and_facts_come_first(text: str) -> None:
    names = find_names(text)
    facts = [fact for fact in find_facts(text) if not is_secret(fact)]
    assert len(names) == len(set(names))
    assert list(names[: len(facts)]) == facts
    assert all(name in text for name in names[len(facts) :])
