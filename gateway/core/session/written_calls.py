"""Calls that a model writes into its text: XML tags of Cline and Roo, SEARCH and REPLACE blocks of aider.

Their results come in the next user message. Values in, values out.
"""

import json
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

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
# `[write_to_file for 'a.py'] Result:`
_RESULT: Final = re.compile(rf"\[({'|'.join(_TAGS)})(?: for '[^\n]{{0,1000}}')?\] Result:[ \t]{{0,20}}\n?")
_FEEDBACK: Final = re.compile(r"<(feedback|user_message)>\n?(.{0,10000}?)\n?</\1>", re.DOTALL)
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
    if "</" in text and (found := tuple(_iter_tags(text))):
        return found
    return tuple(_iter_blocks(text)) if "SEARCH" in text and "REPLACE" in text else ()


def find_written_result(text: str, call: WrittenCall) -> str | None:
    """The result of a call in the user message behind it; None if it was not made, or is not told.

    The result of blocks is empty: aider says only what it could not apply.
    """
    if not call.needs_result:
        return None if _NOT_APPLIED.search(text) else ""
    for found in _RESULT.finditer(text):
        if found.group(1) == call.tool:
            return text[found.end() :]
    return None


def begins_anew(text: str) -> bool:
    """Whether the messages before were examples."""
    return text.startswith(_NEW_CODE_BASE)


def without_results(text: str) -> str:
    """What the user wrote in a message that brings results: feedback, or nothing."""
    if not _RESULT.match(text):
        return text
    return "\n".join(found.group(2) for found in _FEEDBACK.finditer(text))


def _iter_tags(text: str) -> Iterator[WrittenCall]:
    at = 0
    for _ in range(_MOST_CALLS):
        opening = _OPENING.search(text, at)
        if opening is None:
            return
        tool = opening.group(1)
        end = text.find(f"</{tool}>", opening.end())
        if end < 0:
            return
        fields = dict(_iter_fields(text[opening.end() : end]))
        yield WrittenCall(tool, json.dumps(fields), needs_result=True)
        at = end


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
