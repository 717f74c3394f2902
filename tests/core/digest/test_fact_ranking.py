import json

from gateway.core.digest.fact_list import find_missing_facts
from gateway.core.digest.fact_ranking import rank_facts
from gateway.wire.formats.chat.text import parse_entry
from tests.core.digest.test_fact_list import calls, result, user
from tests.shared_data import SHARED, requires_shared

_NOTHING = [user("Go on.")] * 10


def test_what_a_call_used_comes_before_what_was_said_and_that_before_what_a_result_says() -> None:
    entries = [result("/x/result"), user("/x/user"), calls("read", path="/x/call")]
    assert rank_facts(entries, {}).mentioned == ["/x/call", "/x/user", "/x/result"]


def test_what_was_used_lately_comes_first() -> None:
    entries = [calls("read", path="/x/old"), *_NOTHING, calls("read", path="/x/new")]
    assert rank_facts(entries, {}).mentioned == ["/x/new", "/x/old"]


def test_what_the_user_said_holds_however_long_ago_that_was() -> None:
    entries = [user("/x/user"), calls("read", path="/x/call"), *_NOTHING, *_NOTHING]
    assert rank_facts(entries, {}).mentioned == ["/x/user", "/x/call"]


def test_identifiers_count_in_calls_only_and_not_the_states_of_things_to_do() -> None:
    todos = [{"content": "Look at parse_header", "status": "in_progress"}]
    entries = [
        user("some_name"),
        calls("edit", text="other_name = 1"),
        calls("TodoWrite", todos=todos),
        calls("edit", text="other_name = 2"),
    ]
    ranked = rank_facts(entries, {})
    assert ranked.mentioned == ["other_name"] and ranked.todos == ["todo: Look at parse_header"]
    # They are of use for a while only, so no count keeps them.
    assert ranked.counts["other_name"] == 1 and ranked.repeated == []


def test_of_a_long_listing_only_what_is_mentioned_again_counts() -> None:
    listing = result(" ".join(f"/x/{number}.py" for number in range(60)))
    assert rank_facts([listing, user("See /x/7.py")], {}).mentioned == ["/x/7.py"]


def test_counts_of_the_earlier_list_are_added() -> None:
    ranked = rank_facts([user("/x/a"), *_NOTHING], {"/x/a": 3, "/x/b": 2, "/x/c": 7})
    assert ranked.counts["/x/a"] == 4
    assert (ranked.repeated, ranked.earlier) == (["/x/a"], ["/x/c", "/x/b"])


@requires_shared
def test_after_a_recorded_session_every_ranked_fact_is_mentioned_or_listed() -> None:
    """With an empty summary and enough room every ranked fact is listed, maybe within a longer path."""
    paths = sorted((SHARED / "data" / "transcripts").glob("*/*.json"))
    assert paths
    for path in paths[::4]:
        messages = json.loads(path.read_text("utf-8"))["messages"]
        entries = [parse_entry(json.dumps(message).encode()) for message in messages]
        listed = "\n".join(find_missing_facts(entries, None, "", 1_000_000))
        ranked = rank_facts(entries, {})
        assert [fact for fact in (*ranked.todos, *ranked.mentioned[:400]) if fact not in listed] == []


def test_of_very_many_facts_the_repeated_and_the_newest_are_remembered() -> None:
    asked = [user(" ".join(f"src/f{part}_{number}.py" for number in range(1_000))) for part in range(45)]
    again = user("src/f0_7.py and src/again.py")
    ranked = rank_facts([again, again, *asked], {})
    assert set(ranked.repeated) == {"src/f0_7.py", "src/again.py"}
    assert "src/f44_999.py" in ranked.mentioned
    assert len(ranked.counts) <= 20_000
