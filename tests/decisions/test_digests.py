"""A digest without a model: its sections, its lengths, and what it continues."""

import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.digest.allocation import allocate
from gateway.core.digest.fact_list import HEADING, with_fact_list
from gateway.core.digest.render import MIN_DIGEST_CHARS, make_digest
from gateway.core.history.transcript import TranscriptEntry, neutralize

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


def test_a_digest_has_all_sections_in_order() -> None:
    digest = make_digest(_SPOKEN, with_fact_list("# Goal\n\nSpeed.", ["src/lexer.py ×3"]), 5_000)
    first, *sections = digest.split("\n\n## ")
    assert sections == [
        "Earlier summary\n- # Goal\n\n  Speed.",
        "What the user asked\n- Make the parser faster.\n  Keep its tests.\n- And the printer?\n"
        "  [1 attachments left out]",
        "Plan and todos\n- [ ] Write tests",
        "Files\n- src/parser.py (changed)",
        "Commands\n- make",
        "Last assistant texts\n- I look.\n- The printer is next.",
        f"{HEADING.removeprefix('## ')}\n- src/lexer.py ×3",
    ]
    assert "made without a model" in first and "not shown" in first


def test_a_digest_of_a_digest_continues_it() -> None:
    first = make_digest(_SPOKEN, with_fact_list("Goal: speed.", ["src/lexer.py ×3"]), 5_000)
    calls = (("write", '{"path": "docs/x.md"}'), ("bash", '{"cmd": "make"}'))
    more = [TranscriptEntry("user", "And the docs?", (), 0), TranscriptEntry("assistant", "Done.", calls, 0)]
    assert make_digest(more, first, 5_000).split("\n\n## ")[1:] == [
        "Earlier summary\n- Goal: speed.",
        "What the user asked\n- Make the parser faster.\n  Keep its tests.\n- And the printer?\n"
        "  [1 attachments left out]\n- And the docs?",
        "Plan and todos\n- [ ] Write tests",
        "Files\n- docs/x.md (changed)\n- src/parser.py (changed)",
        "Commands\n- make",
        "Last assistant texts\n- I look.\n- The printer is next.\n- Done.",
        f"{HEADING.removeprefix('## ')}\n- src/lexer.py ×3",
    ]


def test_the_first_request_and_the_newest_ones_are_kept() -> None:
    entries = [TranscriptEntry("user", f"Request {number}: " + "word " * 40, (), 0) for number in range(200)]
    digest = make_digest(entries, None, 3_000)
    assert "- Request 0: " in digest and "- Request 199: " in digest
    assert "- Request 100: " not in digest and "more left out]" in digest


_ODD = "- |\n|\r|\u2028|</conversation>|< / earlier-summary|<| |\ud800|- [ ] x\n|[3 more left out]"
_WORDS = st.sampled_from([*_TITLES, *_ODD.split("|")])
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


@given(st.text("abc", min_size=1, max_size=3_000), st.lists(_ANY, max_size=8), st.integers(400, 4_000))
def test_the_first_requests_beginning_is_always_there(
    first: str, entries: list[TranscriptEntry], max_chars: int
) -> None:
    digest = make_digest([TranscriptEntry("user", first, (), 0), *entries], None, max_chars)
    assert f"\n- {first[:40]}" in digest


_NEEDS = st.lists(st.integers(1, 500), max_size=8)


@given(_NEEDS, st.data(), st.integers(0, 1_000), st.integers(1, 100))
def test_no_share_exceeds_its_need_and_their_sum_fits_the_room(
    needs: list[int], data: st.DataObject, room: int, least: int
) -> None:
    weights = [data.draw(st.integers(1, 60)) for _ in needs]
    given_out = allocate(needs, weights, room, least)
    assert len(given_out) == len(needs)
    assert all(0 <= got <= need for got, need in zip(given_out, needs, strict=True))
    assert sum(given_out) <= room
    if sum(needs) <= room:
        assert given_out == needs
