import pytest

from gateway.core.history.purpose import Purpose, find_label, find_purpose, is_agent


@pytest.mark.parametrize(
    ("leading", "newest", "expected"),
    [
        (b"", b"", "main"),
        (b'"You are a coding agent"', b'"Summarize the README"', "main"),
        (b'{"role":"system","content":"You are a title generator. You output ONLY', b'"Hello"', "title"),
        (b"", b'"You are performing a CONTEXT CHECKPOINT COMPACTION. Create', "summary"),
        (
            b"",
            b'[{"text":"CRITICAL: Respond with TEXT ONLY. Your task is to create a detailed summary of th',
            "summary",
        ),
        (b'"You are an anchored context summarization assistant for coding sessions.', b"x", "summary"),
    ],
)
def test_side_calls_are_recognized_by_phrases_of_their_clients(
    leading: bytes, newest: bytes, expected: Purpose
) -> None:
    assert find_purpose(leading, newest, is_agent=False) == expected


def test_a_sub_agents_summary_is_a_summary() -> None:
    assert find_purpose(b"", b"List files", is_agent=True) == "agent"
    assert (
        find_purpose(b"", b"You are performing a CONTEXT CHECKPOINT COMPACTION", is_agent=True) == "summary"
    )


@pytest.mark.parametrize(
    "name", ["x-parent-session-id", "X-Claude-Code-Agent-Id", "x-openai-subagent", "x-codex-parent-thread-id"]
)
def test_a_sub_agent_is_recognized_by_its_header(name: str) -> None:
    assert is_agent(["content-type", name])
    assert not is_agent(["content-type", "x-session-id", "session-id"])


def test_a_session_has_the_name_that_its_client_gives_it() -> None:
    assert find_label([("X-Session-Id", "ses_1"), ("x-gateway-session", "mine")]) == "mine"
    # Sub-agents of Codex send the session of their parent.
    assert find_label([("session-id", "parent"), ("thread-id", "child")]) == "child"
    assert find_label([("user-agent", "x")]) is None


def test_a_label_is_short_and_can_be_shown() -> None:
    label = find_label([("x-session-id", "a\x1b[31m\u202eb" + "c" * 999)])
    assert label is not None and len(label) <= 128 and label.isprintable()
