"""The history as data for a summary request: quoted turn by turn inside a fence.

No text in it can close the fence or begin a turn: a tool's result must not speak as the user. Knows no wire
format.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

# Characters that a reader does not see, and that may stand inside a word or beside it.
_UNSEEN: Final = "\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff"
# All quantifiers are possessive or bounded: two adjacent runs of spaces made "<" and 100 KB of spaces take
# minutes.
_GAP: Final = rf"[\s{_UNSEEN}]*+"


def _spell(word: str) -> str:
    """A pattern for the word with unseen characters between its letters."""
    return rf"[{_UNSEEN}]*+".join(word)


# Finds our three fences, to escape them wherever the history contains them.
_FENCE_NAMES: Final = (
    _spell("conversation"),
    rf"{_spell('kept')}[-_\s\u2010-\u2015]{_spell('messages')}",
    rf"{_spell('earlier')}[-_\s\u2010-\u2015]{_spell('summary')}",
)
_FENCE: Final = re.compile(
    rf"[<\uff1c\ufe64\u2039\u3008](?={_GAP}(?:[/\uff0f]{_GAP})?+(?:{'|'.join(_FENCE_NAMES)})\b)",
    re.IGNORECASE,
)
# Finds what looks like the beginning of a turn: `[user]:`, `[tool result]:`, `[assistant calls x]:`.
_ROLES: Final = ("user", "human", "assistant", "model", "system", "developer", "tool", "function")
_TURN: Final = re.compile(
    rf"[\[\uff3b](?={_GAP}(?:{'|'.join(map(_spell, _ROLES))})\b"
    rf"[^\]\uff3d\n]{{0,80}}[\]\uff3d]{_GAP}[:\uff1a])",
    re.IGNORECASE,
)
# Finds the lines of a text that begin with a bracket, as our turns and fences do. The first line follows a
# label of ours, and our note on a cut is neither.
_BRACKETED_LINE: Final = re.compile(
    rf"([\n\r\v\f\x1c-\x1e\x85\u2028\u2029])(?!\[\.\.\. \d)(?=[{_UNSEEN}]*+[\[\uff3b<\uff1c])"
)
_BRACKETS: Final = str.maketrans("[]", "()")


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
    # Set on a result where the format says that the call failed.
    is_error: bool = False


# Stands for a message that the client no longer sends.
UNKNOWN_ENTRY: Final = TranscriptEntry("", "", (), 0)


def list_entries(messages: Iterable[TranscriptEntry]) -> list[TranscriptEntry]:
    """All entries of the messages, in order."""
    return [
        entry for message in messages if message is not UNKNOWN_ENTRY for entry in (message, *message.more)
    ]


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


def render_kept(messages: Iterable[TranscriptEntry], text_chars: int, most_chars: int) -> str:
    """How the messages that stay begin, inside their fence, at most about so much; empty if that is nothing.

    Each text is cut to `text_chars`.
    """
    shown: list[str] = []
    for entry in list_entries(messages):
        rendered = _render_entry(entry, text_chars, text_chars)
        most_chars -= len(rendered)
        if most_chars < 0:
            break
        shown.append(rendered)
    entries = "\n\n".join(shown)
    return f"<kept-messages>\n{entries}\n</kept-messages>" if shown else ""


def render_earlier_summary(summary: str) -> str:
    """The earlier summary, which the new one updates, inside its fence."""
    return f"<earlier-summary>\n{neutralize(summary)}\n</earlier-summary>"


def neutralize(text: str) -> str:
    """The text with our fences and turns escaped, so that it cannot open or close one."""
    return _TURN.sub("&#91;", _FENCE.sub("&lt;", text))


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
    role = render_name(entry.role)
    label = "tool result" if entry.is_result else role
    lines = [f"[{label}]: {quote(text)}"] if text or not entry.calls else []
    for tool, arguments in entry.calls:
        quoted = f": {quote(cut_middle(arguments, tool_chars))}" if tool_chars != 0 else ""
        lines.append(f"[{role} calls {render_name(tool)}]{quoted}")
    if entry.media:
        lines.append(f"[{entry.media} attachments left out]")
    return "\n".join(lines)


def quote(text: str) -> str:
    """The text behind a label: escaped, and its lines indented where they begin with a bracket."""
    return _BRACKETED_LINE.sub(r"\1 ", neutralize(text))


def render_name(name: str) -> str:
    """A role or the name of a tool, inside the brackets of a label, which it cannot close."""
    return neutralize(" ".join(name.split())).translate(_BRACKETS)


class TaggedBlock(NamedTuple):
    """start, end: with its tags. text: between them."""

    start: int
    end: int
    name: str
    text: str


def iter_blocks(text: str, opening: re.Pattern[str]) -> Iterator[TaggedBlock]:
    """In their order, without those inside of others. opening: an opening tag, with its name as the first
    group. What is not closed is no block. Looks at each place once, and for each name until one is not
    closed.
    """
    at = 0
    unclosed: set[str] = set()
    for found in opening.finditer(text):
        tag = found.group(1)
        if found.start() < at or tag in unclosed:
            continue
        closing = text.find(f"</{tag}>", found.end())
        if closing < 0:
            unclosed.add(tag)
            continue
        at = closing + len(tag) + 3
        yield TaggedBlock(found.start(), at, tag, text[found.end() : closing])


def without_blocks(text: str, opening: re.Pattern[str]) -> str:
    """A block that is not closed stays; a text without blocks is returned unchanged."""
    if "<" not in text:
        return text
    kept, at = list[str](), 0
    for block in iter_blocks(text, opening):
        kept.append(text[at : block.start])
        at = block.end
    return "".join((*kept, text[at:]))
