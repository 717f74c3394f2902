"""What is a request for? The main line of work, or one of the calls that clients make beside it.

Known by the words that a client puts at the beginning of such a call, and by its headers. A wrong guess
costs little: nothing is keyed by it. The phrases are the clients' own, from their public sources.
"""

from collections.abc import Iterable
from typing import Final, Literal

# agent: a sub-agent's own conversation. summary: the client compacts by itself. title: it names its session.
Purpose = Literal["main", "agent", "summary", "title"]

# How far from the beginning of a text such words may stand: a system prompt may begin with a line of its own,
# a question with reminders.
LEADING_BYTES: Final = 2_048
NEWEST_BYTES: Final = 16_384

_SUMMARISING: Final = (
    b"You are performing a CONTEXT CHECKPOINT COMPACTION",  # Codex
    b"Your task is to create a detailed summary of th",  # Claude Code, Cline
    b"You are a helpful AI assistant tasked with summarizing conversations",  # Claude Code, opencode
    b"You are the component that summarizes internal chat history",  # Gemini CLI, Qwen Code
    b"You are an anchored context summarization assistant",  # opencode from 1.15
    b"Provide a detailed prompt for continuing our conversation above",  # opencode
)
_TITLING: Final = (
    b"You are a title generator",  # opencode
    b"Generate a concise, sentence-case title",  # Claude Code, Qwen Code
)
# A sub-agent names its parent, or itself (FACTS §2).
_AGENT_HEADERS: Final = frozenset(
    {
        "x-parent-session-id",  # opencode
        "x-claude-code-agent-id",
        "x-codex-parent-thread-id",
        "x-openai-subagent",
    }
)
# How a client calls its session, the most telling first: a label, never a key (DESIGN §3).
_LABEL_HEADERS: Final = (
    "x-gateway-session",
    "thread-id",
    "x-session-id",
    "x-claude-code-session-id",
    "goose-session-id",
    "x-openwebui-chat-id",
)
_LONGEST_LABEL: Final = 128


def find_purpose(leading: bytes, newest: bytes, *, is_agent: bool) -> Purpose:
    """leading, newest: how the leading block and the newest user message begin, in raw JSON; empty where
    there is none. A sub-agent's own summary is a summary.
    """
    if not leading and not newest:
        return "agent" if is_agent else "main"
    for phrases, purpose in _PHRASES:
        for phrase in phrases:
            if phrase in leading or phrase in newest:
                return purpose
    return "agent" if is_agent else "main"


_PHRASES: Final[tuple[tuple[tuple[bytes, ...], Purpose], ...]] = (
    (_SUMMARISING, "summary"),
    (_TITLING, "title"),
)


def is_agent(names: Iterable[str]) -> bool:
    """By the names of its headers."""
    return any(name.lower() in _AGENT_HEADERS for name in names)


def find_label(headers: Iterable[tuple[str, str]]) -> str | None:
    """What the client calls its session, cut to a length that can be shown; None where it does not say."""
    values = {name.lower(): value for name, value in headers}
    found = next((values[name] for name in _LABEL_HEADERS if values.get(name)), None)
    return "".join(filter(str.isprintable, found[:_LONGEST_LABEL])) if found else None
