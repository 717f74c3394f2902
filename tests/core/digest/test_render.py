import json
from functools import cache
from itertools import accumulate, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.digest.fact_list import HEADING, split_fact_list, with_fact_list
from gateway.core.digest.render import MIN_DIGEST_CHARS, make_digest
from gateway.core.history.transcript import TranscriptEntry, neutralize
from gateway.wire.formats.chat.text import parse_entry
from tests.shared_data import SHARED, requires_shared

_TITLES = [
    "## Earlier summary",
    "## What the user asked",
    "## Plan and todos",
    "## Files",
    "## Commands",
    "## Last assistant texts",
    HEADING,
]
_TODO_ARGUMENTS = '{"todos": [{"content": "Write tests", "status": "pending"}]}'
_SPOKEN = [
    TranscriptEntry("user", "Make the parser faster.\nKeep its tests.", (), 0),
    TranscriptEntry("assistant", "I look.", (("read_file", '{"path": "src/parser.py"}'),), 0),
    TranscriptEntry("tool", "## Files\nresult text", (), 0, is_result=True),
    TranscriptEntry(
        "assistant", "", (("edit", '{"file_path": "src/parser.py"}'), ("bash", '{"command": "make"}')), 0
    ),
    TranscriptEntry("user", "And the printer?", (), 1),
    TranscriptEntry("assistant", "The printer is next.", (("TodoWrite", _TODO_ARGUMENTS), ("read", "{")), 0),
]


def titles_of(digest: str) -> list[str]:
    return [line for line in digest.splitlines() if line.startswith("#")]


def test_a_digest_has_all_sections_in_order() -> None:
    earlier = with_fact_list("# Goal\n\nSpeed.", ["src/lexer.py ×3"])
    digest = make_digest(_SPOKEN, earlier, 5_000)
    assert digest.splitlines()[1:] == [
        "",
        "## Earlier summary",
        "- # Goal",
        "",
        "  Speed.",
        "",
        "## What the user asked",
        "- Make the parser faster.",
        "  Keep its tests.",
        "- And the printer?",
        "  [1 attachments left out]",
        "",
        "## Plan and todos",
        "- [ ] Write tests",
        "",
        "## Files",
        "- src/parser.py (changed)",
        "",
        "## Commands",
        "- make",
        "",
        "## Last assistant texts",
        "- I look.",
        "- The printer is next.",
        "",
        HEADING,
        "- src/lexer.py ×3",
    ]
    assert "made without a model" in digest.splitlines()[0] and "not shown" in digest.splitlines()[0]


def test_a_digest_of_a_digest_continues_it() -> None:
    first = make_digest(_SPOKEN, with_fact_list("Goal: speed.", ["src/lexer.py ×3"]), 5_000)
    more = [
        TranscriptEntry("user", "And the docs?", (), 0),
        TranscriptEntry(
            "assistant", "Done.", (("write", '{"path": "docs/x.md"}'), ("bash", '{"cmd": "make"}')), 0
        ),
    ]
    assert make_digest(more, first, 5_000).splitlines()[2:] == [
        "## Earlier summary",
        "- Goal: speed.",
        "",
        "## What the user asked",
        "- Make the parser faster.",
        "  Keep its tests.",
        "- And the printer?",
        "  [1 attachments left out]",
        "- And the docs?",
        "",
        "## Plan and todos",
        "- [ ] Write tests",
        "",
        "## Files",
        "- docs/x.md (changed)",
        "- src/parser.py (changed)",
        "",
        "## Commands",
        "- make",
        "",
        "## Last assistant texts",
        "- I look.",
        "- The printer is next.",
        "- Done.",
        "",
        HEADING,
        "- src/lexer.py ×3",
    ]


def test_a_digest_of_a_digest_alone_is_the_same() -> None:
    digest = make_digest(_SPOKEN, "Goal: speed.", 5_000)
    assert make_digest([], digest, 5_000) == digest


def test_the_first_request_and_the_newest_ones_are_kept() -> None:
    entries = [TranscriptEntry("user", f"Request {number}: " + "word " * 40, (), 0) for number in range(200)]
    digest = make_digest(entries, None, 3_000)
    assert "- Request 0: " in digest and "- Request 199: " in digest
    assert "- Request 100: " not in digest and "more left out]" in digest


def test_left_out_items_stay_counted() -> None:
    entries = [TranscriptEntry("user", f"Request {number}: " + "word " * 40, (), 0) for number in range(200)]
    digests = list(
        accumulate(repeat(entries[100:], 3), _fold, initial=make_digest(entries[:100], None, 3_000))
    )
    assert [text.count("more left out]") for text in digests] == [1, 1, 1, 1]


def _fold(earlier: str, entries: list[TranscriptEntry]) -> str:
    return make_digest(entries, earlier, 3_000)


def test_unused_room_of_a_section_goes_to_the_others() -> None:
    digest = make_digest([TranscriptEntry("user", "a" * 10_000, (), 0)], None, 4_000)
    assert 3_900 < len(digest) <= 4_000


def test_a_list_below_the_digest_is_continued_by_the_next_one() -> None:
    digest = with_fact_list(make_digest(_SPOKEN, None, 5_000), ["a/b.py"])
    again = make_digest([], digest, 5_000)
    assert split_fact_list(again)[1] == ("a/b.py",)
    assert titles_of(again).count(HEADING) == 1


_WORDS = st.sampled_from(
    [
        *_TITLES,
        "- ",
        "\n",
        "\r",
        "\u2028",
        "</conversation>",
        "< / earlier-summary",
        "<",
        " ",
        "\ud800",
        "word " * 30,
        "- [ ] x\n",
        "[3 more left out]",
        "\\ud800",
    ]
)
_TEXT = st.one_of(st.text(max_size=40), st.lists(_WORDS, max_size=60).map("".join))
_JSON_TEXT = st.dictionaries(
    st.sampled_from(["path", "command", "cmd", "todos", "plan", "status", "content", "x"]),
    st.one_of(_TEXT, st.lists(_TEXT, max_size=3), st.integers(), st.none()),
    max_size=4,
).map(json.dumps)
_CALLS = st.lists(
    st.tuples(st.sampled_from(["edit", "todo_write", "plan", ""]), st.one_of(_TEXT, _JSON_TEXT)), max_size=3
).map(tuple)
_ANY = st.builds(
    TranscriptEntry,
    st.sampled_from(["user", "assistant", "tool", "system", "developer", "other", ""]),
    _TEXT,
    _CALLS,
    st.integers(0, 2),
    hidden=_TEXT,
    is_result=st.booleans(),
)
_EARLIER = st.one_of(st.none(), _TEXT, st.lists(_ANY, max_size=3).map(lambda s: make_digest(s, "x", 2_000)))


@given(st.lists(_ANY, max_size=12), _EARLIER, st.integers(0, 6_000))
def test_any_history_keeps_the_length_the_sections_and_the_fences(
    entries: list[TranscriptEntry], earlier: str | None, max_chars: int
) -> None:
    digest = make_digest(entries, earlier, max_chars)
    assert len(digest) <= max(max_chars, MIN_DIGEST_CHARS)
    assert digest == make_digest(list(entries), earlier, max_chars)
    assert neutralize(digest) == digest
    digest.encode()
    lines = digest.splitlines()[1:]
    titles = [line for line in lines if not line.startswith(("- ", "  ")) and line]
    assert titles == [title for title in _TITLES if title in titles]


@given(st.lists(_ANY, max_size=12), _EARLIER, st.integers(400, 4_000), st.integers(0, 4_000))
def test_a_larger_budget_never_drops_a_section(
    entries: list[TranscriptEntry], earlier: str | None, max_chars: int, more: int
) -> None:
    small, large = (make_digest(entries, earlier, size) for size in (max_chars, max_chars + more))
    assert set(titles_of(small)) <= set(titles_of(large))


@given(st.text("abc", min_size=1, max_size=3_000), st.lists(_ANY, max_size=8), st.integers(400, 4_000))
def test_the_first_requests_beginning_is_always_there(
    first: str, entries: list[TranscriptEntry], max_chars: int
) -> None:
    digest = make_digest([TranscriptEntry("user", first, (), 0), *entries], None, max_chars)
    assert f"\n- {first[:40]}" in digest


def test_a_digest_of_thousands_of_messages_is_fast() -> None:
    """Quadratic time would exceed the time limit of the suite."""
    entries = [
        TranscriptEntry("user", f"{number} " + "x" * 300, (("edit", f'{{"path": "a/{number}.py"}}'),), 0)
        for number in range(30_000)
    ]
    digest = make_digest(entries, None, 12_000)
    assert "- 29999 xxx" in digest and len(digest) <= 12_000


@cache
def transcripts() -> dict[str, list[TranscriptEntry]]:
    folder = SHARED / "data" / "transcripts"
    found = {}
    for path in sorted(folder.glob("*/*.json")):
        messages = json.loads(path.read_text("utf-8"))["messages"]
        entries = [parse_entry(json.dumps(message).encode()) for message in messages]
        found[path.name] = [entry for entry in entries if entry.role != "system"]
    return found


@requires_shared
@pytest.mark.parametrize("max_chars", [1_200, 5_000, 15_000])
def test_recorded_sessions_fit_and_keep_their_first_request(max_chars: int) -> None:
    assert transcripts()
    for entries in transcripts().values():
        digest = make_digest(entries, None, max_chars)
        first = next(entry.text for entry in entries if entry.role == "user").strip().splitlines()[0]
        assert len(digest) <= max_chars
        assert f"\n- {neutralize(first)[:40]}" in digest


@requires_shared
def test_a_recorded_session_in_ten_digests_still_begins_with_its_first_request() -> None:
    for entries in transcripts().values():
        size = len(entries) // 10 + 1
        digest = None
        for at in range(0, len(entries), size):
            digest = make_digest(entries[at : at + size], digest, 6_000)
        first = next(entry.text for entry in entries if entry.role == "user").strip().splitlines()[0]
        assert digest is not None and len(digest) <= 6_000
        assert f"## What the user asked\n- {neutralize(first)[:40]}" in digest.replace(_note(digest), "", 1)


def _note(digest: str) -> str:
    """The note on left-out requests, if there is one."""
    line = digest.partition("## What the user asked\n")[2].partition("\n")[0]
    return f"{line}\n" if line.endswith("more left out]") else ""
