"""The history as data for the summariser: fenced, quoted, never an instruction.

Knows what was said, not in which wire format. Nothing in the history can close the fence.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

# Our two fences. Both are broken wherever the history itself writes them. Possessive: two runs of spaces that
# could be divided in any way made "<" and 100 KB of spaces take minutes.
_FENCE = re.compile(r"<(?=\s*+(?:/\s*+)?+(?:conversation|earlier-summary)\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """What one message says. calls: (tool name, arguments). media: how many parts are not text.

    hidden: what is counted, but never quoted: reasoning, and the words of parts of unknown kinds.
    media_tokens: flat figures of the pictures, recordings and files among the parts, and of what is sealed.
    more: what else the same message says: a result for each parallel call, and a user beside them.
    """

    role: str
    text: str
    calls: tuple[tuple[str, str], ...]
    media: int
    hidden: str = ""
    is_result: bool = False
    media_tokens: int = 0
    more: tuple["TranscriptEntry", ...] = ()


def list_entries(spoken: Iterable[TranscriptEntry]) -> list[TranscriptEntry]:
    """Everything that was said, each by itself, in order."""
    return [entry for message in spoken for entry in (message, *message.more)]


def render_transcript(
    spoken: Iterable[TranscriptEntry], tool_chars: int | None = None, text_chars: int | None = None
) -> str:
    """The conversation inside its fence; results and arguments cut to `tool_chars` in the middle, if given,
    all other texts to `text_chars`. Of 0 characters nothing is left to be cut: they are left out.
    """
    shown = (entry for entry in list_entries(spoken) if tool_chars != 0 or not entry.is_result)
    entries = "\n\n".join(_render_entry(entry, tool_chars, text_chars) for entry in shown)
    return f"<conversation>\n{entries}\n</conversation>"


def render_earlier_summary(summary: str) -> str:
    """The summary that the new one brings up to date."""
    return f"<earlier-summary>\n{neutralize(summary)}\n</earlier-summary>"


def neutralize(text: str) -> str:
    """Text that cannot open or close a fence of ours."""
    return _FENCE.sub("&lt;", text)


def cut_middle(text: str, keep_chars: int | None) -> str:
    """Head and tail of a text, with what is missing named in between."""
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
