"""Calls that a model writes into its text: XML tags of Cline and Roo, SEARCH and REPLACE blocks of aider.

Their results come in the next user message. Values in, values out.
"""

import json
import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from typing import Final, NamedTuple

from gateway.core.history.transcript import iter_blocks
from gateway.core.session.patches import parse_search_blocks

_TAGS: Final = (
    *("write_to_file", "replace_in_file", "apply_diff", "search_and_replace", "insert_content"),
    *("execute_command", "read_file", "update_todo_list"),
)
_OPENING: Final = re.compile(rf"^<({'|'.join(_TAGS)})>", re.MULTILINE)
_FIELDS: Final = (
    *("path", "diff", "content", "command", "search", "replace", "line", "start_line", "end_line", "todos"),
    *("line_count", "cwd"),
)
_LONG_FIELDS: Final = ("content", "diff")
_MOST_CALLS: Final = 50
# `[write_to_file for 'a.py'] Result:`. One a line at most: else each of a thousand would look through the
# same thousand characters.
_RESULT: Final = re.compile(
    rf"^\[({'|'.join(_TAGS)})(?: for '[^\n]{{0,1000}}')?\] Result:[ \t]{{0,20}}\n?", re.MULTILINE
)
# What the user adds to results. A longer block is not the user's words.
_FEEDBACK: Final = re.compile("<(feedback|user_message)>")
_LONGEST_FEEDBACK_CHARS: Final = 10_000
_MARKER: Final = re.compile(r"<{5,9} ?SEARCH\s*")
_CLOSING: Final = re.compile(r">{5,9} ?REPLACE\s*")
_FENCE: Final = re.compile(r"(?:```|~~~|<source>|<code>)\S{0,40}")
# What aider says if it could not apply what the model wrote.
_NOT_APPLIED: Final = re.compile(r"SEARCH/REPLACE blocks? failed to match|did not conform to the edit format")
# Behind examples, which aider sends as if they were a part of the conversation.
_NEW_CODE_BASE: Final = "I switched to a new code base."


class WrittenCall(NamedTuple):
    """arguments: JSON, as those of a real call. needs_result: else nothing tells whether it was made."""

    tool: str
    arguments: str
    needs_result: bool


def find_written_calls(text: str) -> tuple[WrittenCall, ...]:
    """In the order of the text; empty for one without."""
    blocks = islice(iter_blocks(text, _OPENING), _MOST_CALLS) if "</" in text else ()
    found = [(block.name, json.dumps(dict(_iter_fields(block.text)))) for block in blocks]
    if found:
        return tuple(WrittenCall(name, arguments, needs_result=True) for name, arguments in found)
    return tuple(_iter_blocks(text)) if "SEARCH" in text and "REPLACE" in text else ()


def find_written_results(text: str, calls: Sequence[WrittenCall]) -> list[str | None]:
    """The results of these calls in the user message behind them; None for one that was not made, or of
    which nothing is told.

    Each result answers one call of its tool. The result of blocks is empty: aider says only what it could not
    apply.
    """
    is_applied = not _NOT_APPLIED.search(text)
    told: dict[str, deque[str]] = {}
    found = list(_RESULT.finditer(text))
    for result, following in zip_longest(found, found[1:]):
        end = following.start() if following is not None else len(text)
        told.setdefault(result.group(1), deque()).append(text[result.end() : end])
    return [_take(told, call.tool) if call.needs_result else "" if is_applied else None for call in calls]


def _take(told: dict[str, deque[str]], tool: str) -> str | None:
    left = told.get(tool)
    return left.popleft() if left else None


def begins_anew(text: str) -> bool:
    """Whether the messages before were examples."""
    return text.startswith(_NEW_CODE_BASE)


def without_results(text: str) -> str:
    """What the user wrote in a message that brings results: feedback, or nothing."""
    if not _RESULT.match(text):
        return text
    found = [block.text for block in iter_blocks(text, _FEEDBACK)]
    return "\n".join(
        each.removeprefix("\n").removesuffix("\n") for each in found if len(each) <= _LONGEST_FEEDBACK_CHARS
    )


def _iter_fields(body: str) -> Iterator[tuple[str, str]]:
    """A long text may hold tags of its own, so it ends at the last tag of its name."""
    for name in _FIELDS:
        find_end = body.rfind if name in _LONG_FIELDS else body.find
        start, end = body.find(f"<{name}>"), find_end(f"</{name}>")
        if 0 <= start < end:
            value = body[start + len(name) + 2 : end]
            yield name, value.removeprefix("\n") if name in _LONG_FIELDS else value.strip()


def _iter_blocks(text: str) -> Iterator[WrittenCall]:
    """Each block with the path that stands before it, or that of the block before."""
    lines, path, at = text.split("\n"), "", 0
    for _ in range(_MOST_CALLS):
        start = next((n for n in range(at, len(lines)) if _MARKER.fullmatch(lines[n])), None)
        end = next((n for n in range(start or 0, len(lines)) if _CLOSING.fullmatch(lines[n])), None)
        if start is None or end is None or end < start:
            return
        path = _find_path(lines[max(at, start - 3) : start]) or path
        block = "\n".join(lines[start : end + 1])
        if path and parse_search_blocks(block):
            yield WrittenCall(
                "replace_in_file", json.dumps({"path": path, "diff": block}), needs_result=False
            )
        at = end + 1


def _find_path(lines: list[str]) -> str:
    """The last line that is no fence."""
    names = [line.strip(" \t*#`:") for line in lines if not _FENCE.fullmatch(line.strip())]
    return next((name for name in reversed(names) if name and " " not in name), "")
