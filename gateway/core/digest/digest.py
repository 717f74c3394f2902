"""A digest: what stands for a history that no model has summarized. It only quotes.

The same messages give the same digest. An earlier summary is quoted; an earlier digest whose messages are
gone is continued by what it holds.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, Literal

from gateway.core.digest.work import FoldedHistory, make_lists
from gateway.core.history.lists import DIGEST_HEAD, ITEM, SAID_HEADING, Lists, Told
from gateway.core.history.transcript import TranscriptEntry, cut_middle, list_entries, neutralize

# A smaller digest has no room for its head and the first request.
MIN_DIGEST_CHARS: Final = 400

_Section = Literal["earlier", "asked", "said"]
# What the user wants and where the work stands are needed to continue; files and commands can be found again.
_WEIGHTS: Final[Mapping[_Section, int]] = {"asked": 30, "earlier": 25, "said": 20}
# Of the room; the rest is for quoted texts.
_LISTS_SHARE: Final = 0.3
# Older texts of the model tell how the work got there, not where it stands.
_LAST_TEXTS: Final = 8
_ROLE_LABELS: Final = {"user": "", "system": "[system] ", "developer": "[developer] "}
_INDENT: Final = "  "
# A text gets at least so much, while there is so much; shorter parts of texts say nothing.
_MIN_CHARS: Final = 120
_SHORTEST_CHARS: Final = 50
# In a smaller room the long note would take too much of it.
_SHORT_CHARS: Final = 160
_SHORT_NOTE: Final = " … "
# The longest heading of a section, with the lines around it.
_HEADING_CHARS: Final = len(f"\n\n{SAID_HEADING}")
_LEFT_OUT_CHARS: Final = len("\n- [999999999 more left out]")
# Of a longer text both ends are read.
_READ_CHARS: Final = 100_000
# JSON may contain a lone surrogate, which cannot be encoded.
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def make_digest(folded: FoldedHistory, max_chars: int) -> Told:
    """At most `max_chars` characters, or MIN_DIGEST_CHARS if that is more. Never raises."""
    room = max(max_chars, MIN_DIGEST_CHARS) - len(DIGEST_HEAD)
    lists_room = int(_LISTS_SHARE * room)
    quoted = Told(DIGEST_HEAD, _quote_texts(folded, room - lists_room))
    listed = make_lists(quoted.spelled_out, folded, lists_room)
    texts = quoted.lists
    return Told(
        DIGEST_HEAD,
        replace(texts, files=listed.files, commands=listed.commands, todos=listed.todos, names=listed.names),
    )


def _quote_texts(folded: FoldedHistory, room: int) -> Lists:
    before, entries = folded.before, list_entries(folded.entries)
    old = before.lists
    earlier = old.earlier if before.summary == DIGEST_HEAD else _quote(before.summary)
    texts: dict[_Section, list[str]] = {
        "earlier": [earlier] if earlier else [],
        "asked": _order_asked([*old.asked, *map(_quote, filter(None, map(_find_asked, entries)))]),
        "said": [*old.said, *map(_quote, _list_last_said(entries))][-_LAST_TEXTS:],
    }
    needs = {title: _HEADING_CHARS + _count(found) for title, found in texts.items() if found}
    room -= _LEFT_OUT_CHARS
    fitted = {
        title: _fit(texts[title], share - _HEADING_CHARS, is_first_kept=title == "asked")
        for title, share in _divide(needs, room).items()
    }
    asked = fitted.get("asked", ())
    return Lists(
        earlier=next(iter(fitted.get("earlier", ())), ""),
        asked=asked,
        said=fitted.get("said", ()),
        left_out=old.left_out + len(texts["asked"]) - len(asked),
    )


def _find_asked(entry: TranscriptEntry) -> str:
    """The text of a user or of an instruction; empty for any other entry."""
    if entry.is_result or entry.role not in _ROLE_LABELS:
        return ""
    media = f"[{entry.media} attachments left out]" if entry.media else ""
    text = "\n".join(filter(None, (entry.text.strip(), media)))
    return _ROLE_LABELS[entry.role] + text if text else ""


def _list_last_said(entries: Sequence[TranscriptEntry]) -> list[str]:
    said = (entry.text for entry in reversed(entries) if entry.role == "assistant" and entry.text.strip())
    return list(islice(said, _LAST_TEXTS))[::-1]


def _order_asked(asked: Sequence[str]) -> list[str]:
    """The first request of a user, then everything else, including instructions before it; each once, at its
    last position.
    """
    labels = tuple(label for label in _ROLE_LABELS.values() if label)
    first = next((text for text in asked if not text.startswith(labels)), None)
    others = [text for text in dict.fromkeys(reversed(asked)) if text != first][::-1]
    return others if first is None else [first, *others]


def _quote(text: str) -> str:
    """The text as an item: no line of it looks like a heading, and nothing in it closes a fence."""
    safe = neutralize(_SURROGATE.sub("\ufffd", cut_middle(text, _READ_CHARS))).strip()
    return "\n".join(_INDENT + line if line.strip() else "" for line in safe.splitlines()).strip()


def _divide(needs: Mapping[_Section, int], room: int) -> dict[_Section, int]:
    """What each section gets: what it needs, or by weight its share of what those that need less leave."""
    shares: dict[_Section, int] = {}
    weights = sum(_WEIGHTS[section] for section in needs)
    for section in sorted(needs, key=lambda each: needs[each] / _WEIGHTS[each]):
        shares[section] = min(needs[section], room * _WEIGHTS[section] // weights)
        room -= shares[section]
        weights -= _WEIGHTS[section]
    return shares


def _count(texts: Sequence[str]) -> int:
    return sum(len(f"\n{ITEM}{text}") for text in texts)


def _fit(texts: Sequence[str], room: int, *, is_first_kept: bool) -> tuple[str, ...]:
    """All texts, or the newest ones, in their order. Each gets a third of what is left, or what all that are
    older leave, and is cut in the middle if it is longer. The first one, if it is kept, comes before all
    others.
    """
    rest = _count(texts)
    if rest <= room:
        return tuple(texts)
    newest = range(len(texts) - 1, -1, -1)
    kept: dict[int, str] = {}
    for at in [0, *newest[:-1]] if is_first_kept else newest:
        rest -= _count(texts[at : at + 1])
        most = max(room // 3, room - rest, min(room, _MIN_CHARS)) - len(f"\n{ITEM}")
        if most < min(len(texts[at]), _SHORTEST_CHARS):
            break
        kept[at] = _cut(texts[at], most)
        room -= _count([kept[at]])
    return tuple(kept[at] for at in sorted(kept))


def _cut(quoted: str, room: int) -> str:
    """Head and tail of a quoted text, and its length."""
    if len(quoted) <= room:
        return quoted
    note = f"\n{_INDENT}[... cut; {len(quoted)} characters in all ...]\n{_INDENT}"
    if room < _SHORT_CHARS:
        note = _SHORT_NOTE
    keep = room - len(note)
    tail = keep // 3
    # The cut may produce the beginning of a fence.
    head = neutralize(quoted[: keep - tail].rstrip())[: keep - tail]
    # Its first line may be cut anywhere: it stands behind our note.
    return head + note + quoted[-tail:].lstrip()
