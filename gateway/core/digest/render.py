"""The digest: what stands for the history where no model can give a summary.

Quotes, never rewords: the same bytes for the same messages. An earlier digest is taken apart and continued,
so that the first request is still its first entry after many of them; an earlier summary is quoted. Knows
what was picked, and a budget in characters.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gateway.core.digest.allocation import allocate
from gateway.core.digest.excerpt import Items, parse_items, parse_left_out, render_items, render_whole_items
from gateway.core.digest.fact_list import HEADING, split_fact_list
from gateway.core.digest.highlights import LAST_TEXTS, Highlights, find_highlights, without_repeats
from gateway.core.history.transcript import TranscriptEntry

# Below this there is no room for the head and the first request.
LEAST_DIGEST_CHARS: Final = 400

_HEAD: Final = (
    "This digest was made without a model. It quotes parts of the messages it replaces; "
    "their full text is gone."
)
_EARLIER: Final = "## Earlier summary"
_ASKED: Final = "## What the user asked"
_PLAN: Final = "## Plan and todos"
_FILES: Final = "## Files"
_COMMANDS: Final = "## Commands"
_SAID: Final = "## Last assistant texts"
# As they stand in the digest. The list of facts goes last, where the next compaction looks for it.
_TITLES: Final = (_EARLIER, _ASKED, _PLAN, _FILES, _COMMANDS, _SAID, HEADING)
# The most important first, with its share: what the user wants and where the work stands say how to go on;
# files and commands can be found again.
_SHARES: Final = {_ASKED: 30, _SAID: 20, _PLAN: 11, _EARLIER: 25, _FILES: 12, HEADING: 7, _COMMANDS: 6}
# A section that gets less than this, its title included, says nothing.
_LEAST_SECTION_CHARS: Final = 160
# A part of a list weighs this much, divided by how far from the most important one it is.
_WEIGHT: Final = 60
# What a digest quotes of instructions that are no user's.
_NOT_USERS: Final = ("[system] ", "[developer] ")
_BOXES: Final = ("[ ] ", "[x] ")
_CHANGED: Final = " (changed)"

_Section = tuple[Callable[[Items, int], str], Items]


def make_digest(spoken: Sequence[TranscriptEntry], earlier: str | None, most_chars: int) -> str:
    """At most `most_chars` characters; less than `LEAST_DIGEST_CHARS` counts as that. Never raises.

    earlier: the summary or digest that this one replaces together with the messages.
    """
    before = _read_earlier(earlier or "")
    texts = _join(before, find_highlights(spoken))
    sections = {
        title: _make_section(title, texts[title], _count_missing(title, before[title]))
        for title in _TITLES
        if texts[title]
    }
    return _render(sections, max(most_chars, LEAST_DIGEST_CHARS))


def _read_earlier(earlier: str) -> dict[str, list[str]]:
    """The entries of an earlier digest by section; of any other text one entry, and its list of facts."""
    text, facts = split_fact_list(earlier)
    lines = text.splitlines()
    found: dict[str, list[str]] = {title: [] for title in _TITLES}
    if not lines or lines[0] != _HEAD:
        return found | {_EARLIER: [text] if text.strip() else [], HEADING: list(facts)}
    at = _EARLIER
    for line in lines[1:]:
        if line in found:
            at = line
        else:
            found[at].append(line)
    return {title: parse_items(lines) for title, lines in found.items()} | {HEADING: list(facts)}


def _join(before: Mapping[str, list[str]], picked: Highlights) -> dict[str, list[str]]:
    """What the earlier digest said, brought up to date."""
    old = {title: [text for text in texts if parse_left_out(text) is None] for title, texts in before.items()}
    todos = [text for text in old[_PLAN] if text.startswith(_BOXES)]
    plans = [text for text in old[_PLAN] if not text.startswith(_BOXES)]
    return {
        _EARLIER: old[_EARLIER],
        _ASKED: _join_asked([*old[_ASKED], *picked.asked]),
        _PLAN: [
            *(todos if picked.todos is None else picked.todos),
            *(plans if picked.plan is None else [picked.plan]),
        ],
        _FILES: _join_files(old[_FILES], picked.files),
        _COMMANDS: without_repeats([*old[_COMMANDS], *picked.commands]),
        _SAID: [*old[_SAID], *picked.said][-LAST_TEXTS:],
        HEADING: old[HEADING],
    }


def _join_asked(asked: list[str]) -> list[str]:
    """The first request, which nothing replaces, then the rest; system texts before it go behind it."""
    first = next((text for text in asked if not text.startswith(_NOT_USERS)), None)
    return (
        without_repeats(asked) if first is None else [first, *without_repeats(t for t in asked if t != first)]
    )


def _join_files(old: Sequence[str], files: Mapping[str, bool]) -> list[str]:
    """The most important first: those that were changed, the newest of them before the others."""
    known = {path.removesuffix(_CHANGED): path.endswith(_CHANGED) for path in reversed(old)}
    for path, is_changed in files.items():
        known[path] = known.pop(path, False) or is_changed
    newest_first = [(path, known[path]) for path in reversed(known)]
    changed = [path + _CHANGED for path, is_changed in newest_first if is_changed]
    return changed + [path for path, is_changed in newest_first if not is_changed]


def _make_section(title: str, texts: Sequence[str], missing: int) -> _Section:
    """Which entries go first where not all fit."""
    count = len(texts)
    weights = [max(1, _WEIGHT // (at + 1)) for at in range(count)]
    match title:
        case _ if title == _ASKED:
            # Half for the first request, the rest for the others, the newest first.
            weights = [max(1, sum(weights[:-1])), *weights[:-1]]
            return render_items, Items(texts, [0, *range(count - 1, 0, -1)], weights, missing)
        case _ if title in (_COMMANDS, _SAID):
            return render_items, Items(texts, range(count - 1, -1, -1), weights, missing)
        case _ if title in (_FILES, HEADING):
            return render_whole_items, Items(texts, range(count), weights, missing)
        case _:
            return render_items, Items(texts, range(count), weights, missing)


def _count_missing(title: str, texts: Sequence[str]) -> int:
    """What earlier digests left out of a section that only grows."""
    return sum(parse_left_out(text) or 0 for text in texts) if title in (_ASKED, _FILES, _COMMANDS) else 0


def _render(sections: Mapping[str, _Section], most_chars: int) -> str:
    titles = [title for title in _SHARES if title in sections]
    room = most_chars - len(_HEAD)
    frames = {title: len(title) + len("\n\n\n") for title in titles}
    needs = [frames[title] + len(_render_body(sections[title], room)) for title in titles]
    given = allocate(needs, [_SHARES[title] for title in titles], room, _LEAST_SECTION_CHARS)
    shares = dict(zip(titles, given, strict=True))
    parts = [
        f"{title}\n{_render_body(sections[title], shares[title] - frames[title])}"
        for title in _TITLES
        if shares.get(title)
    ]
    return "\n\n".join([_HEAD, *parts])


def _render_body(section: _Section, room: int) -> str:
    render, items = section
    return render(items, room)
