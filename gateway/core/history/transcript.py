"""The history as data for a summary request: quoted inside a fence that no text in it can close.

Knows no wire format.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

# Finds our two fences, to escape them wherever the history contains them. The quantifiers are possessive,
# because two adjacent runs of spaces made "<" and 100 KB of spaces take minutes.
_FENCE = re.compile(r"<(?=\s*+(?:/\s*+)?+(?:conversation|earlier-summary)\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """The content of one message."""

    role: str
    text: str
    # Tool name and arguments of each call.
    calls: tuple[tuple[str, str], ...]
    # The number of parts that are not text.
    media: int
    # Text that is counted but never quoted: reasoning, and parts of unknown kinds.
    hidden: str = ""
    is_result: bool = False
    # Fixed estimates of pictures, recordings, files and opaque parts.
    media_tokens: int = 0
    # Other entries of the same message: a result for each parallel call, and a user's text beside them.
    more: tuple["TranscriptEntry", ...] = ()


def list_entries(messages: Iterable[TranscriptEntry]) -> list[TranscriptEntry]:
    """All entries of the messages, in order."""
    return [entry for message in messages for entry in (message, *message.more)]


def render_transcript(
    messages: Iterable[TranscriptEntry], tool_chars: int | None = None, text_chars: int | None = None
) -> str:
    """The conversation inside its fence.

    Results and arguments are cut to `tool_chars` in the middle, all other texts to `text_chars`; None leaves
    them whole. With 0 for `tool_chars` results and arguments are left out.
    """
    shown = (entry for entry in list_entries(messages) if tool_chars != 0 or not entry.is_result)
    entries = "\n\n".join(_render_entry(entry, tool_chars, text_chars) for entry in shown)
    return f"<conversation>\n{entries}\n</conversation>"


def render_earlier_summary(summary: str) -> str:
    """The earlier summary, which the new one updates, inside its fence."""
    return f"<earlier-summary>\n{neutralize(summary)}\n</earlier-summary>"


def neutralize(text: str) -> str:
    """The text with our fences escaped, so that it cannot open or close one."""
    return _FENCE.sub("&lt;", text)


def cut_middle(text: str, keep_chars: int | None) -> str:
    """Head and tail of a text, with a note on what is missing in between."""
    if keep_chars is None or len(text) <= keep_chars:
        return text
    head = (keep_chars + 1) // 2
    tail = keep_chars - head
    note = f"\n[... {len(text) - keep_chars} of {len(text)} characters cut ...]\n"
    return text[:head] + note + (text[-tail:] if tail else "")


def _render_entry(entry: TranscriptEntry, tool_chars: int | None, text_chars: int | None) -> str:
    text = cut_middle(entry.text, tool_chars if entry.is_result else text_chars)
    label = "tool result" if entry.is_result else entry.role
    lines = [f"[{label}]: {neutralize(text)}"] if text or not entry.calls else []
    for tool, arguments in entry.calls:
        quoted = f": {neutralize(cut_middle(arguments, tool_chars))}" if tool_chars != 0 else ""
        lines.append(f"[{entry.role} calls {neutralize(tool)}]{quoted}")
    if entry.media:
        lines.append(f"[{entry.media} attachments left out]")
    return "\n".join(lines)
