"""A digest without a model: its sections, its lengths, and what it continues."""

import json
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.digest.digest import MIN_DIGEST_CHARS, FoldedHistory, make_digest
from gateway.core.history.lists import (
    ASKED_HEADING,
    COMMANDS_HEADING,
    EARLIER_HEADING,
    FILES_HEADING,
    NAMES_HEADING,
    NOTHING_TOLD,
    SAID_HEADING,
    ListedFile,
    ListedName,
    Lists,
    Told,
    drop_copied_lists,
)
from gateway.core.history.message import Call, Message, Role
from gateway.core.history.transcript import TranscriptEntry, neutralize

_TITLES = [EARLIER_HEADING, ASKED_HEADING, SAID_HEADING, FILES_HEADING, COMMANDS_HEADING, NAMES_HEADING]
_TODO_ARGUMENTS = '{"todos": [{"content": "Write tests", "status": "pending"}]}'
_DONE = TranscriptEntry("tool", "The file has been updated.", (), 0, is_result=True)
_RAN = TranscriptEntry("tool", "Exit code 2", (), 0, is_result=True)
_SPOKEN = [
    TranscriptEntry("user", "Make the parser faster.\nKeep its tests.", (), 0),
    TranscriptEntry("assistant", "I look.", (("read_file", '{"path": "src/parser.py"}'),), 0),
    TranscriptEntry("tool", "## Files\nresult text", (), 0, is_result=True),
    TranscriptEntry(
        "assistant", "", (("write", '{"file_path": "src/lexer.py"}'), ("bash", '{"command": "make"}')), 0
    ),
    _DONE,
    _RAN,
    TranscriptEntry("user", "And the printer?", (), 1),
    TranscriptEntry("assistant", "The printer is next.", (("TodoWrite", _TODO_ARGUMENTS),), 0),
    _DONE,
]


def fold(entries: Sequence[TranscriptEntry], before: Told = NOTHING_TOLD) -> FoldedHistory:
    """Calls and results have ids, in the order in which they follow each other."""
    messages, waiting = [], list[str]()
    for position, entry in enumerate(entries):
        calls = tuple(Call(f"{position}:{at}", tool) for at, (tool, _) in enumerate(entry.calls))
        results = (waiting.pop(0),) if entry.is_result and waiting else ()
        waiting += [call.id for call in calls]
        role: Role = "tool" if entry.is_result else "assistant" if entry.role == "assistant" else "user"
        messages.append(Message(role, b"", b"", 0, calls, results))
    return FoldedHistory(messages, entries, before)


def test_a_digest_has_all_sections_in_order() -> None:
    before = Told("# Goal\n\nSpeed.", Lists(names=(ListedName("src/tokens.py", 3),)))
    first, *sections = make_digest(fold(_SPOKEN, before), 5_000).text.split("\n\n## ")
    assert sections == [
        "Earlier summary\n- # Goal\n\n  Speed.",
        "What the user asked\n- Make the parser faster.\n  Keep its tests.\n- And the printer?\n"
        "  [1 attachments left out]",
        "Last assistant texts\n- I look.\n- The printer is next.",
        f"{FILES_HEADING.removeprefix('## ')}\n- src/lexer.py",
        f"{COMMANDS_HEADING.removeprefix('## ')}\n- make → exit 2",
        f"{NAMES_HEADING.removeprefix('## ')}\n- todo: Write tests\n- src/: parser.py, tokens.py ×3",
    ]
    assert "made without a model" in first and "not shown" in first


def test_a_digest_of_a_digest_whose_messages_are_gone_continues_it() -> None:
    first = make_digest(fold(_SPOKEN, Told("Goal: speed.")), 5_000)
    more = [TranscriptEntry("user", "And the docs?", (), 0), TranscriptEntry("assistant", "Done.", (), 0)]
    second = make_digest(fold(more, first), 5_000)
    assert (second.lists.earlier, second.lists.todos) == ("Goal: speed.", ("Write tests",))
    assert second.lists.asked == (*first.lists.asked, "And the docs?")
    assert second.lists.said == (*first.lists.said, "Done.")
    assert {name.text for name in first.lists.names} <= {name.text for name in second.lists.names}


def test_a_digest_of_an_earlier_gateway_is_quoted() -> None:
    old = "This digest was made without a model.\n\n## What the user asked\n- Make it faster."
    digest = make_digest(fold(_SPOKEN, Told(old)), 5_000)
    assert "Make it faster." in digest.lists.earlier


def test_the_first_request_and_the_newest_ones_are_kept() -> None:
    entries = [TranscriptEntry("user", f"Request {number}: " + "word " * 40, (), 0) for number in range(300)]
    kept = make_digest(fold(entries[:200]), 3_000)
    digest = kept.text
    assert "- Request 0: " in digest and "- Request 199: " in digest
    assert "- Request 100: " not in digest and "more left out]" in digest
    again = make_digest(fold(entries[200:], kept), 3_000).lists
    # Each request is counted once, and the note is none of them.
    assert len(again.asked) + again.left_out == 300
    assert "left out" not in "".join(again.asked)


def test_lists_that_a_model_copies_are_not_listed_twice() -> None:
    lists = Lists(files=(ListedFile("src/a.py"),), names=(ListedName("ENOENT"),))
    assert drop_copied_lists(Told("We went on.", lists).text) == "We went on."
    assert drop_copied_lists(Told("", lists).text) == Told("", lists).text
    assert drop_copied_lists("Of its own.\r\n ") == "Of its own.\r\n "
    own = f"We went on.\n{FILES_HEADING}\n- src/a.py\nMore text."
    assert drop_copied_lists(own) == own


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
_EARLIER = st.one_of(
    st.just(NOTHING_TOLD),
    _TEXT.map(Told),
    st.lists(_ANY, max_size=3).map(lambda entries: make_digest(fold(entries, Told("x")), 2_000)),
)


@given(st.lists(_ANY, max_size=12), _EARLIER, st.integers(0, 6_000))
def test_any_history_keeps_the_length_the_sections_and_the_fences(
    entries: list[TranscriptEntry], earlier: Told, max_chars: int
) -> None:
    told = make_digest(fold(entries, earlier), max_chars)
    assert told == make_digest(fold(list(entries), earlier), max_chars)
    digest = told.text
    assert len(digest) <= max(max_chars, MIN_DIGEST_CHARS)
    assert neutralize(digest) == digest
    digest.encode()
    lines = digest.splitlines()[1:]
    titles = [line for line in lines if not line.startswith(("- ", "  ")) and line]
    assert titles == [title for title in _TITLES if title in titles]


@given(st.text("abc", min_size=1, max_size=3_000), st.lists(_ANY, max_size=8), st.integers(400, 4_000))
def test_the_first_requests_beginning_is_always_there(
    first: str, entries: list[TranscriptEntry], max_chars: int
) -> None:
    digest = make_digest(fold([TranscriptEntry("user", first, (), 0), *entries]), max_chars).text
    assert f"\n- {first[:40]}" in digest
