"""What a user asked for: the text of a user message without what clients add, and its first words."""

import re
from typing import Final

from gateway.core.history.transcript import TranscriptEntry, list_entries, without_blocks

LONGEST_TITLE_CHARS: Final = 100
# Of a longer text its beginning and its end are read: a pattern that looks through it holds up other threads.
_EDGE_CHARS: Final = 1 << 18
# Blocks that clients put beside the user's words: rules, the environment, open files, results of their own
# commands. From the sources of Claude Code, Qwen Code, Cline, Roo, Codex, goose and opencode.
_ADDED_BLOCKS: Final = (
    *("system-reminder", "system_reminder", "environment_details", "environment_context", "info-msg"),
    *("user_instructions", "INSTRUCTIONS", "local-command-stdout", "local-command-stderr"),
    *("local-command-caveat", "command-message", "command-args", "bash-stdout", "bash-stderr"),
    *("permissions instructions", "collaboration_mode", "skills_instructions", "turn_aborted"),
)
_ADDED: Final = re.compile(rf"<({'|'.join(map(re.escape, _ADDED_BLOCKS))})>")
# What stands around a task, and its name.
_WRAPPED: Final = re.compile(r"\A<(task|feedback|user_message|user_query|command-name)>(.*?)</\1>", re.DOTALL)
# Codex sends the project's instructions under such a heading.
_INSTRUCTIONS: Final = re.compile(r"\A# AGENTS\.md instructions for [^\n]*")
_THOUGHT: Final = re.compile(r"\A\s*<(think|thinking|analysis)>.*?</\1>", re.DOTALL)
_JSON_TITLE: Final = re.compile(r'\{\s*"(?:title|name)"\s*:\s*"([^"\n]{1,500})"')
_TAGGED_TITLE: Final = re.compile(r"<title>([^<]{1,500})</title>")
# A message of this kind tells that the user stopped the model.
_INTERRUPTED: Final = re.compile(r"\A\[Request interrupted by user[^\]]*\]\s*")


def find_asked(entry: TranscriptEntry) -> str:
    """The text that a user wrote in a message, without blocks that clients add; empty if there is none."""
    texts = [each.text for each in list_entries([entry]) if each.role == "user" and not each.is_result]
    return without_added_blocks(without_middle("\n".join(texts)))


def without_middle(text: str) -> str:
    """The beginning and the end of a long text, on lines of their own."""
    if len(text) <= 2 * _EDGE_CHARS:
        return text
    return f"{text[:_EDGE_CHARS]}\n{text[-_EDGE_CHARS:]}"


def make_title(text: str) -> str:
    """The first line of a text, cut at a word; empty if nothing of it is a user's."""
    line = next(iter(without_added_blocks(text).splitlines()), "")
    words = " ".join(line.split())
    if len(words) <= LONGEST_TITLE_CHARS:
        return words
    whole_words = words[:LONGEST_TITLE_CHARS].rpartition(" ")[0]
    return (whole_words or words[: LONGEST_TITLE_CHARS - 1]).rstrip(" ,;:") + "…"


def parse_title_reply(text: str) -> str:
    """The title in a model's reply to a client that asked for one: plain, in quotes, in a tag, or as JSON.
    Empty if there is none. What a model thought before it, in a tag, is left out.
    """
    words = _THOUGHT.sub("", text).strip()
    for pattern in (_JSON_TITLE, _TAGGED_TITLE):
        if found := pattern.search(words):
            words = found.group(1)
            break
    line = next((line for line in words.splitlines() if line.strip(" `#*\"'")), "")
    return make_title(line.strip(" `#*\"'“”"))


def without_added_blocks(text: str) -> str:
    """A block that is not closed stays."""
    words = _INTERRUPTED.sub("", without_blocks(text, _ADDED).strip())
    words = _INSTRUCTIONS.sub("", words).strip()
    wrapped = _WRAPPED.match(words)
    return wrapped.group(2).strip() if wrapped else words
