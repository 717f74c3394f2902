"""What a request is for: the main conversation, or one of the side calls that clients make.

Recognized by the words at the beginning of such a call and by its headers. A wrong guess costs little,
because no key depends on it. The phrases are from the clients' public sources, and from our own prompts.
"""

from collections.abc import Iterable
from typing import Final, Literal

# agent: a sub-agent's own conversation. summary: the client compacts its history. title: it names its
# session.
Purpose = Literal["main", "agent", "summary", "title"]

# How far into a text the phrases are searched: a system prompt may begin with another line, a question with
# reminders.
LEADING_BYTES: Final = 2_048
NEWEST_BYTES: Final = 16_384

_PHRASES: Final[dict[bytes, Purpose]] = {
    b"You are performing a CONTEXT CHECKPOINT COMPACTION": "summary",  # Codex
    b"Your task is to create a detailed summary of th": "summary",  # Claude Code, Cline
    # Claude Code, opencode
    b"You are a helpful AI assistant tasked with summarizing conversations": "summary",
    b"You are the component that summarizes internal chat history": "summary",  # Gemini CLI, Qwen Code
    b"You are an anchored context summarization assistant": "summary",  # opencode from 1.15
    b"Provide a detailed prompt for continuing our conversation above": "summary",  # opencode
    # A gateway in front of this one; the same, if its summary rides.
    b"You write summaries of conversations between a user and an assistant": "summary",
    b"Stop here for a moment: the next answer is not for the task": "summary",
    b"You are a title generator": "title",  # opencode
    b"Generate a concise, sentence-case title": "title",  # Claude Code, Qwen Code
}
# A sub-agent names its parent or itself in one of these headers.
_AGENT_HEADERS: Final = frozenset(
    {
        "x-parent-session-id",  # opencode
        "x-claude-code-agent-id",
        "x-codex-parent-thread-id",
        "x-openai-subagent",
    }
)
# Headers with a client's name for its session, the most specific first. It is shown as a label and never a
# key.
_LABEL_HEADERS: Final = (
    "x-gateway-session",
    "thread-id",
    "x-session-id",
    "x-claude-code-session-id",
    "goose-session-id",
    "x-openwebui-chat-id",
)
_LONGEST_LABEL_CHARS: Final = 128


def find_purpose(leading: bytes, newest: bytes, *, is_agent: bool) -> Purpose:
    """The purpose; that of a sub-agent's summary is "summary".

    leading, newest: the beginning of the leading block and of the newest user message in raw JSON, maybe
    empty.
    """
    if not leading and not newest:
        return "agent" if is_agent else "main"
    for phrase, purpose in _PHRASES.items():
        if phrase in leading or phrase in newest:
            return purpose
    return "agent" if is_agent else "main"


def is_agent(names: Iterable[str]) -> bool:
    """Whether a request comes from a sub-agent, by the names of its headers."""
    return any(name.lower() in _AGENT_HEADERS for name in names)


def find_label(headers: Iterable[tuple[str, str]]) -> str | None:
    """The client's name for its session, shortened so that it can be shown; None if it sends none."""
    values = {name.lower(): value for name, value in headers}
    found = next((values[name] for name in _LABEL_HEADERS if values.get(name)), None)
    return "".join(filter(str.isprintable, found[:_LONGEST_LABEL_CHARS])) if found else None
