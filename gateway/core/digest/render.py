"""Renders the digest, which replaces the history if no model can summarize it.

A digest only quotes, and is the same for the same messages. An earlier digest is parsed and continued, so
that the first request stays its first entry; an earlier summary is quoted. Knows the highlights and a budget
in characters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.digest.allocation import allocate
from gateway.core.digest.excerpt import Items, parse_items, parse_left_out, render_items, render_whole_items
from gateway.core.digest.fact_list import HEADING, split_fact_list
from gateway.core.digest.highlights import LAST_TEXTS, Highlights, find_highlights, without_repeats
from gateway.core.history.transcript import TranscriptEntry

# A smaller digest has no room for its head and the first request.
MIN_DIGEST_CHARS: Final = 400

_MADE: Final = "This digest was made without a model. It quotes parts of the messages it replaces; "
_HEAD: Final = f"{_MADE}their full text is not shown."
# Digests of earlier versions are continued, too.
_HEADS: Final = (_HEAD, f"{_MADE}their full text is gone.")
_EARLIER: Final = "## Earlier summary"
_ASKED: Final = "## What the user asked"
_PLAN: Final = "## Plan and todos"
_FILES: Final = "## Files"
_COMMANDS: Final = "## Commands"
_SAID: Final = "## Last assistant texts"
# In the order of the digest. The list of facts is last, where the next compaction looks for it.
_TITLES: Final = (_EARLIER, _ASKED, _PLAN, _FILES, _COMMANDS, _SAID, HEADING)
# In the order of importance. What the user wants and where the work stands are needed to continue; files and
# commands can be found again.
_WEIGHTS: Final = {_ASKED: 30, _SAID: 20, _PLAN: 11, _EARLIER: 25, _FILES: 12, HEADING: 7, _COMMANDS: 6}
# A shorter section, including its title, says nothing.
_MIN_SECTION_CHARS: Final = 160
# The weight of the most important item of a list; the weight of item n is an nth of it.
_FIRST_WEIGHT: Final = 60
# Labels of quoted instructions that are not from a user.
_INSTRUCTION_LABELS: Final = ("[system] ", "[developer] ")
_BOXES: Final = ("[ ] ", "[x] ")
_CHANGED: Final = " (changed)"


@dataclass(frozen=True, slots=True)
class _Section:
    title: str
    items: Items
    render_items: Callable[[Items, int], str]

    def render_body(self, room: int) -> str:
        return self.render_items(self.items, room)

    @property
    def frame_chars(self) -> int:
        return len(self.title) + len("\n\n\n")


def make_digest(messages: Sequence[TranscriptEntry], earlier: str | None, max_chars: int) -> str:
    """A digest of at most `max_chars` characters, or of MIN_DIGEST_CHARS if that is more. Never raises.

    earlier: the summary or digest that this one replaces together with the messages.
    """
    before = _parse_earlier(earlier or "")
    texts = _merge(before, find_highlights(messages))
    sections = {
        title: _make_section(title, texts[title], _count_missing(title, before[title]))
        for title in _TITLES
        if texts[title]
    }
    return _render(sections, max(max_chars, MIN_DIGEST_CHARS))


def _parse_earlier(earlier: str) -> dict[str, list[str]]:
    """The items of an earlier digest by section; any other text is one item, apart from its list of facts."""
    text, facts = split_fact_list(earlier)
    lines = text.splitlines()
    found: dict[str, list[str]] = {title: [] for title in _TITLES}
    if not lines or lines[0] not in _HEADS:
        return found | {_EARLIER: [text] if text.strip() else [], HEADING: list(facts)}
    at = _EARLIER
    for line in lines[1:]:
        if line in found:
            at = line
        else:
            found[at].append(line)
    return {title: parse_items(lines) for title, lines in found.items()} | {HEADING: list(facts)}


def _merge(before: Mapping[str, list[str]], found: Highlights) -> dict[str, list[str]]:
    """The items of the earlier digest, updated."""
    old = {title: [text for text in texts if parse_left_out(text) is None] for title, texts in before.items()}
    todos = [text for text in old[_PLAN] if text.startswith(_BOXES)]
    plans = [text for text in old[_PLAN] if not text.startswith(_BOXES)]
    return {
        _EARLIER: old[_EARLIER],
        _ASKED: _merge_asked([*old[_ASKED], *found.asked]),
        _PLAN: [
            *(todos if found.todos is None else found.todos),
            *(plans if found.plan is None else [found.plan]),
        ],
        _FILES: _merge_files(old[_FILES], found.files),
        _COMMANDS: without_repeats([*old[_COMMANDS], *found.commands]),
        _SAID: [*old[_SAID], *found.said][-LAST_TEXTS:],
        HEADING: old[HEADING],
    }


def _merge_asked(asked: list[str]) -> list[str]:
    """The first request of a user, then everything else, including instructions before it."""
    first = next((text for text in asked if not text.startswith(_INSTRUCTION_LABELS)), None)
    return (
        without_repeats(asked) if first is None else [first, *without_repeats(t for t in asked if t != first)]
    )


def _merge_files(old: Sequence[str], files: Mapping[str, bool]) -> list[str]:
    """The most important first: changed files before others, and newer ones before older ones."""
    known = {path.removesuffix(_CHANGED): path.endswith(_CHANGED) for path in reversed(old)}
    for path, is_changed in files.items():
        known[path] = known.pop(path, False) or is_changed
    newest_first = [(path, known[path]) for path in reversed(known)]
    changed = [path + _CHANGED for path, is_changed in newest_first if is_changed]
    return changed + [path for path, is_changed in newest_first if not is_changed]


def _make_section(title: str, texts: Sequence[str], missing: int) -> _Section:
    """A section with the weights of its items."""
    count = len(texts)
    weights = [max(1, _FIRST_WEIGHT // (at + 1)) for at in range(count)]
    match title:
        case _ if title == _ASKED:
            # Half of the room is for the first request, the rest for the others, the newest first.
            weights = [max(1, sum(weights[:-1])), *weights[:-1]]
            items, render = Items(texts, [0, *range(count - 1, 0, -1)], weights, missing), render_items
        case _ if title in (_COMMANDS, _SAID):
            items, render = Items(texts, range(count - 1, -1, -1), weights, missing), render_items
        case _ if title in (_FILES, HEADING):
            items, render = Items(texts, range(count), weights, missing), render_whole_items
        case _:
            items, render = Items(texts, range(count), weights, missing), render_items
    return _Section(title, items, render)


def _count_missing(title: str, texts: Sequence[str]) -> int:
    """The number of items that earlier digests left out of a section that only grows."""
    return sum(parse_left_out(text) or 0 for text in texts) if title in (_ASKED, _FILES, _COMMANDS) else 0


def _render(sections: Mapping[str, _Section], max_chars: int) -> str:
    by_importance = [sections[title] for title in _WEIGHTS if title in sections]
    room = max_chars - len(_HEAD)
    needs = [section.frame_chars + len(section.render_body(room)) for section in by_importance]
    weights = [_WEIGHTS[section.title] for section in by_importance]
    given = allocate(needs, weights, room, _MIN_SECTION_CHARS)
    shares = {section.title: share for section, share in zip(by_importance, given, strict=True)}
    parts = [
        f"{title}\n{sections[title].render_body(shares[title] - sections[title].frame_chars)}"
        for title in _TITLES
        if shares.get(title)
    ]
    return "\n\n".join([_HEAD, *parts])
