"""What the model sees after a compaction, on three recorded sessions: docs/seen.md, before and after.

The sessions run through a window of 32K as in `recall`. A stand-in that quotes the first words of each
message writes the summaries, so the page shows what stands around a model's text, and where. What issue 19
showed is kept in docs/seen, made by the same steps at commit 3451f25.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.facts import extract, load_session, with_list
from bench.recall import Compacted, compact
from gateway.core.history.lists import render_lists
from gateway.core.history.pivot import make_framing
from gateway.core.history.transcript import TranscriptEntry, neutralize
from gateway.settings import load_settings

_DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
PAGE: Final = _DOCS / "seen.md"
_SESSIONS: Final = (
    ("review", "entire-claude-code/23-72de7ea2ff-0.json", "Claude Code reviews a Go project"),
    ("hooks", "entire-claude-code/18-4069756ffc-0.json", "Claude Code changes hooks of a Go project"),
    (
        "research",
        "entire-claude-code/cd-95adddad32-0.json",
        "Claude Code studies another project, then plans",
    ),
)
_NUMBER: Final = 2
_LIST_SHARE: Final = 0.2
_LINE_CHARS: Final = 160
_OWN_LINES: Final = 4
_TAIL_MESSAGES: Final = 3
_ID: Final = "5f0c9a7be2d14c36"
_INTRODUCTION: Final = """# What the model sees

Three recorded sessions (`shared/data/transcripts`; published under the MIT licence by the project that
they work on, entireio/cli, and shown here in excerpts) at their second compaction in a window of 32K: what
stands in the place of the older messages, before issue 20 and now. Written by `python -m bench seen`; a
test compares this page with what the code does. The text of the summary is a stand-in's, which quotes the
first words of each message, and only its beginning is shown: a real summary has the headings of
`config/prompts/adaptive/instruction.txt`. Long lines are cut here, not in what is sent.

What changed: the lines below the text. Much of the list was noise (lines of context that grep prints,
kinds of files, examples out of documents). Now what calls used lately comes first, files are grouped by
folder, what the opening or the newest messages show is left out, and files changed and commands run have
sections of their own.
"""


def write_seen() -> None:
    page = render_page()
    if page is None:
        print("\nSeen: no recorded sessions")
        return
    PAGE.write_text(page, "utf-8")
    print(f"\nSeen: {PAGE}")


def render_page() -> str | None:
    """None without the recorded sessions."""
    parts = [_INTRODUCTION]
    for name, path, title in _SESSIONS:
        session = load_session(path)
        if session is None:
            return None
        before = (_DOCS / "seen" / f"{name}.txt").read_text("utf-8").rstrip()
        after = "\n".join(_show(session, _compact(session))).rstrip()
        parts.append(f"## {title}\n\nBefore:\n\n```text\n{before}\n```\n\nNow:\n\n```text\n{after}\n```\n")
    return "\n".join(parts)


def _compact(session: Sequence[TranscriptEntry]) -> Compacted:
    found = (each for each in compact(session, with_list(extract, _LIST_SHARE)) if each.number == _NUMBER)
    return next(found)


def _show(session: Sequence[TranscriptEntry], compacted: Compacted) -> Iterator[str]:
    prompts = load_settings(None, {}).policies["default"].prompts
    yield f"[user] {_cut(compacted.opening)}"
    yield f"[assistant] {make_framing('summary', _ID)}"
    yield ""
    lines = compacted.told.summary.splitlines()
    yield from map(_cut, lines[:_OWN_LINES])
    yield f"[… {len(lines) - _OWN_LINES} more lines of the stand-in]"
    yield ""
    yield from render_lists(compacted.told.lists).splitlines()
    yield f"[user] {prompts.resume}"
    tail = session[compacted.covers : compacted.end]
    for entry in tail[:_TAIL_MESSAGES]:
        said = entry.text or " ".join(f"{tool} {arguments}" for tool, arguments in entry.calls)
        yield f"[{'tool' if entry.is_result else entry.role}] {_cut(said)}"
    yield f"[… {len(tail) - _TAIL_MESSAGES} more messages, as they were sent]"


def _cut(text: str) -> str:
    line = neutralize(" ".join(text.split()).replace("```", "'''"))
    return line if len(line) <= _LINE_CHARS else f"{line[: _LINE_CHARS - 1]}…"
