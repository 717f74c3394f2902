import json
from typing import Any

from gateway.core.digest.highlights import LAST_TEXTS, find_highlights, without_repeats
from gateway.core.history.transcript import TranscriptEntry


def user(text: str, media: int = 0) -> TranscriptEntry:
    return TranscriptEntry("user", text, (), media)


def says(text: str, **calls: Any) -> TranscriptEntry:
    return TranscriptEntry(
        "assistant", text, tuple((name, json.dumps(value)) for name, value in calls.items()), 0
    )


def result(text: str) -> TranscriptEntry:
    return TranscriptEntry("tool", text, (), 0, is_result=True)


def test_instructions_are_quoted_with_their_role_unless_it_is_a_user() -> None:
    entries = [
        user(" Fix it. "),
        result("x"),
        says("yes"),
        TranscriptEntry("developer", "Be brief.", (), 0),
        user("", media=2),
        user(" "),
    ]
    assert find_highlights(entries).asked == ["Fix it.", "[developer] Be brief.", "[2 attachments left out]"]


def test_the_last_texts_of_the_assistant_are_quoted_in_order() -> None:
    entries = [says(str(number)) for number in range(LAST_TEXTS + 2)] + [says(" ")]
    assert find_highlights(entries).said == [str(number) for number in range(2, LAST_TEXTS + 2)]


def test_files_are_listed_by_last_mention_and_marked_if_changed() -> None:
    entries = [
        says("", read_file={"path": "a"}, edit={"path": "b"}),
        says("", str_replace_editor={"command": "view", "path": "c"}),
        says("", str_replace_editor={"command": "create", "path": "a"}, read={"path": "b"}),
        TranscriptEntry(
            "assistant", "", (("apply_patch", "*** Begin Patch\n*** Update File: d\n"), ("x", "{")), 0
        ),
    ]
    assert list(find_highlights(entries).files.items()) == [
        ("c", False),
        ("a", True),
        ("b", True),
        ("d", True),
    ]


def test_each_command_is_listed_once_on_one_short_line() -> None:
    entries = [says("", bash={"command": command}) for command in ("ls\n -l", "pwd", "ls -l", "y" * 400)]
    assert find_highlights(entries).commands == ["pwd", "ls -l", "y" * 299 + "…"]


def test_the_latest_list_is_quoted_with_open_items_first() -> None:
    first = {"todos": [{"content": "old", "status": "pending"}]}
    second = {
        "todos": [{"content": "a", "status": "completed"}, {"content": "b\nc", "status": "in_progress"}]
    }
    entries = [
        says("", TodoWrite=first),
        says("", TodoWrite=second),
        says("", update_plan={"plan": "1. Do it"}),
    ]
    picked = find_highlights(entries)
    assert (picked.todos, picked.plan) == (["[ ] b c", "[x] a"], "1. Do it")


def test_a_list_read_by_a_call_is_in_its_result() -> None:
    items = json.dumps([{"content": "a", "status": "pending"}])
    assert find_highlights([says("", todoread={}), result(items)]).todos == ["[ ] a"]
    assert find_highlights([says("", todoread={}), result("- [x] a\n- [ ] b")]).todos == ["[ ] b", "[x] a"]
    assert find_highlights([says("", todoread={}, ls={}), result(items), result("")]).todos is None


def test_a_list_can_be_emptied_and_a_call_without_arguments_changes_nothing() -> None:
    first = {"todos": [{"content": "old", "status": "pending"}]}
    assert find_highlights([says("", TodoWrite=first), says("", TodoWrite={"todos": []})]).todos == []
    assert find_highlights([says("", TodoWrite=first), says("", TodoRead={})]).todos == ["[ ] old"]


def test_only_the_last_of_equal_texts_stays() -> None:
    assert without_repeats(["a", "b", "a", "c"]) == ["b", "a", "c"]


def test_a_users_text_beside_results_is_a_request() -> None:
    entries = [
        says("", look={}),
        TranscriptEntry("tool", "x", (), 0, is_result=True, more=(result("y"), user("Stop."))),
    ]
    assert find_highlights(entries).asked == ["Stop."]
