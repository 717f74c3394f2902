"""What a tool call would do to files, from the name and the arguments of the tool.

Knows the shapes of arguments that agents use for editing, and not one agent from another: a text to be found
and the text in its place, a whole file, lines put in, a patch.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from gateway.core.counts import is_count
from gateway.core.session.patches import (
    Replacement,
    parse_codex_patch,
    parse_search_blocks,
    parse_unified_diff,
)
from gateway.core.session.tool_arguments import parse_arguments
from gateway.core.session.work import FileChange

_LONGEST_PATH_CHARS: Final = 1_000
_LONGEST_NAME_CHARS: Final = 128
# Names of tools that are remembered in their normal form.
_KNOWN_NAMES: Final = 256


class ReplaceTexts(NamedTuple):
    path: str | None
    replacements: tuple[Replacement, ...]


class WriteFile(NamedTuple):
    """text: None where the call does not hold it: a notebook, or a file that is made empty, and filled by
    other calls.
    """

    path: str
    text: str | None


class InsertLines(NamedTuple):
    """after_line: 0 for the beginning of the file; None where the call does not tell."""

    path: str | None
    text: str
    after_line: int | None


class ApplyPatch(NamedTuple):
    """changes: without their position."""

    changes: tuple[FileChange, ...]


FileAction = ReplaceTexts | WriteFile | InsertLines | ApplyPatch

_PATHS: Final = (
    *("file_path", "filePath", "filepath", "path", "absolute_path", "target_file", "filename", "file"),
    *("relative_path", "relative_workspace_path", "TargetFile", "AbsolutePath", "file_name"),
)
# What is to be found, and what takes its place.
_PAIRS: Final = (
    *(("old_string", "new_string"), ("oldString", "newString"), ("old_str", "new_str")),
    *(("oldText", "newText"), ("old_text", "new_text"), ("search", "replace"), ("oldStr", "newStr")),
    *(("old_code", "new_code"), ("find", "replace"), ("TargetContent", "ReplacementContent")),
)
_ALL: Final = (
    *("replace_all", "replaceAll", "replace-all", "all_occurrences", "is_everywhere", "AllowMultiple"),
    *("allow_multiple", "use_regex", "regex"),
)
_CONTENTS: Final = ("content", "file_text", "contents", "text", "file_content", "new_content", "fileText")
_INSERTED: Final = ("insert_text", "new_str", "text", "new_text", "content", "insertText")
_PATCHES: Final = ("input", "patch", "patchText", "patch_text", "diff", "unified_diff", "content", "changes")
_WRITERS: Final = re.compile(
    r"(?:^|_)(?:write|create|save|overwrite|add)(?:_?(?:to|new|text|a))*(?:_?file)?$"
)
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def normalize_tool(name: str) -> str:
    """In lower case with underscores, without the names of servers: `mcp__fs__WriteFile` is `write_file`."""
    return _normalize(name[:_LONGEST_NAME_CHARS])


@lru_cache(_KNOWN_NAMES)
def _normalize(name: str) -> str:
    last = re.split(r"__|[.:/]", name)[-1]
    return _CAMEL.sub("_", last).replace("-", "_").lower()


def find_file_actions(tool: str, arguments: str) -> tuple[FileAction, ...]:
    """What the call would do, in order; empty if it does nothing to files that can be told."""
    value = parse_arguments(arguments)
    if isinstance(value, dict):
        return tuple(_find_actions(normalize_tool(tool), value))
    patched = find_patch(arguments)
    return (ApplyPatch(patched),) if patched else ()


def find_patch(text: str) -> tuple[FileChange, ...]:
    """The files of a patch in one of the known forms; empty if the text is none."""
    found = parse_codex_patch(text) or (parse_unified_diff(text) if "\n+++ " in text else ())
    return tuple(found or ())


def _find_operation(operation: Mapping[str, object]) -> tuple[FileChange, ...]:
    """The apply_patch tool of the Responses API: one file in each call."""
    names = {"create_file": "Add", "update_file": "Update", "delete_file": "Delete"}
    kind, path, diff = (operation.get(key) for key in ("type", "path", "diff"))
    if not isinstance(kind, str) or kind not in names or not isinstance(path, str):
        return ()
    body = diff if isinstance(diff, str) else ""
    return find_patch(f"*** Begin Patch\n*** {names[kind]} File: {path}\n{body}\n*** End Patch")


def _find_actions(tool: str, fields: Mapping[str, object]) -> Iterator[FileAction]:
    if isinstance(operation := fields.get("operation"), dict):
        yield ApplyPatch(_find_operation(operation))
        return
    texts = (fields.get(key) for key in _PATCHES)
    if patched := next((each for text in texts if isinstance(text, str) and (each := find_patch(text))), ()):
        yield ApplyPatch(patched)
        return
    path = _find_text(fields, _PATHS)
    path = path if path and len(path) <= _LONGEST_PATH_CHARS and path.isprintable() else None
    command = fields.get("command")
    if isinstance(fields.get("notebook_path"), str) and "new_source" in fields:
        yield WriteFile(str(fields["notebook_path"])[:_LONGEST_PATH_CHARS], None)
    elif isinstance(command, str) and path and command in _EDITOR_COMMANDS:
        yield from _find_editor_action(command, path, fields)
    elif edits := fields.get("edits") or fields.get("ReplacementChunks"):
        yield from _find_several(path, edits)
    elif replacement := _find_pair(fields):
        yield _make_replacement(path, replacement)
    elif path and (blocks := _find_blocks(fields)):
        yield ReplaceTexts(path, tuple(blocks))
    else:
        yield from _find_plain(tool, path, fields)


_EDITOR_COMMANDS: Final = frozenset({"create", "write", "str_replace", "replace", "insert", "view", "read"})


def _find_editor_action(command: str, path: str, fields: Mapping[str, object]) -> Iterator[FileAction]:
    """Anthropic's text editor, and those of OpenHands and goose: one tool with a command."""
    match command:
        case "create" | "write":
            if (text := _find_text(fields, _CONTENTS)) is not None:
                yield WriteFile(path, text)
        case "str_replace" | "replace":
            replacement = _find_pair({**fields, "new_str": fields.get("new_str") or ""})
            if replacement:
                yield ReplaceTexts(path, (replacement,))
        case "insert":
            if (text := _find_text(fields, _INSERTED)) is not None:
                yield InsertLines(path, text, _find_number(fields.get("insert_line")))


def _find_several(path: str | None, edits: object) -> Iterator[FileAction]:
    """Several replacements in one call: in one file, or each with its own."""
    found: dict[str | None, list[Replacement]] = {}
    for edit in edits if isinstance(edits, list) else ():
        replacement = _find_pair(edit) if isinstance(edit, dict) else None
        if replacement is None:
            return
        found.setdefault(_find_text(edit, _PATHS) or path, []).append(replacement)
    yield from (ReplaceTexts(each, tuple(replacements)) for each, replacements in found.items() if each)


def _find_pair(fields: Mapping[str, object]) -> Replacement | None:
    for old_key, new_key in _PAIRS:
        old, new = fields.get(old_key), fields.get(new_key)
        if isinstance(old, str) and isinstance(new, str):
            expected = fields.get("expected_replacements")
            several = isinstance(expected, int) and expected > 1
            return Replacement(old, new, several or any(fields.get(key) is True for key in _ALL))
    return None


def _make_replacement(path: str | None, replacement: Replacement) -> FileAction:
    """An edit of no text makes the file, in the agents that allow it."""
    if not replacement.old and path:
        return WriteFile(path, replacement.new)
    return ReplaceTexts(path, (replacement,))


def _find_blocks(fields: Mapping[str, object]) -> list[Replacement]:
    texts = (fields.get(key) for key in ("diff", "content", "blocks", "edits"))
    return next(
        (found for text in texts if isinstance(text, str) and (found := parse_search_blocks(text))), []
    )


def _find_plain(tool: str, path: str | None, fields: Mapping[str, object]) -> Iterator[FileAction]:
    """Tools that are known by their name only."""
    text = _find_text(fields, _CONTENTS)
    if tool == "editor" and path and isinstance(inserted := fields.get("new_text"), str):
        line = _find_number(fields.get("insert_line"))  # Cline: counts from 1, before the line
        is_insert = line is not None and line > 0
        yield InsertLines(path, inserted, line - 1) if is_insert and line else WriteFile(path, inserted)
    elif path and _WRITERS.search(tool):
        yield WriteFile(path, text)
    elif tool == "insert" and text is not None:
        yield InsertLines(path, text, _find_number(fields.get("line")))


def _find_text(fields: Mapping[str, object], keys: tuple[str, ...]) -> str | None:
    return next((value for key in keys if isinstance(value := fields.get(key), str)), None)


def _find_number(value: object) -> int | None:
    return value if is_count(value) else None
