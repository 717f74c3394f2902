"""The work of a session as Markdown, for people and for what reads Markdown. Values in, a text out.

Nothing in it can change the document around it: texts of the conversation stand on one line, and what would
be markup is escaped or quoted as code.
"""

import re
from collections.abc import Iterator
from typing import Final

from gateway.admin.answers import SessionCommand, SessionPage
from gateway.core.session.work import TouchedFile

_MARKUP: Final = re.compile(r"([\\`*_{}\[\]<>()#+!|~&-])")
_BACKTICKS: Final = re.compile(r"`+")


def render_markdown(page: SessionPage) -> str:
    return "\n".join(_list_lines(page)) + "\n"


def _list_lines(page: SessionPage) -> Iterator[str]:
    yield f"# {escape(page.title) if page.title else 'Session ' + page.id}"
    yield ""
    yield f"Conversation `{page.id}`" + (f", noted {page.updated}." if page.updated else ": nothing is kept.")
    if page.files:
        left = f", and {page.left_files} more" if page.left_files else ""
        yield from _begin(f"Files: +{page.additions} -{page.deletions}{left}")
        yield from map(_describe_file, page.files)
    if page.todos:
        yield from _begin("Open to-dos")
        for todo in page.todos:
            yield f"- [ ] {escape(todo.text)}" + (" (in progress)" if todo.in_progress else "")
    if page.commands:
        left = f": the newest {len(page.commands)}" if page.left_commands else ""
        yield from _begin(f"Commands{left}")
        yield from map(_describe_command, page.commands)
    if page.messages:
        yield from _begin("Messages")
        yield from (f"- {each.message}: {escape(each.title)}" for each in page.messages)
    if page.summary is not None:
        yield from _begin(f"Last {page.summary.kind}, {page.summary.created}")
        fence = "`" * max(3, _find_longest(page.summary.text) + 1)
        yield f"{fence}text"
        yield page.summary.text
        yield fence


def escape(text: str) -> str:
    """On one line, without markup."""
    return _MARKUP.sub(r"\\\1", _join_lines(text))


def quote(text: str) -> str:
    """On one line, as code."""
    line = _join_lines(text)
    fence = "`" * (_find_longest(line) + 1)
    space = " " if line[:1] in ("`", " ", "") or line[-1:] in ("`", " ") else ""
    return f"{fence}{space}{line}{space}{fence}"


def _begin(title: str) -> Iterator[str]:
    yield ""
    yield f"## {title}"
    yield ""


def _describe_file(file: TouchedFile) -> str:
    # Zeros would say that nothing was changed.
    is_counted = not file.unknown or bool(file.additions or file.deletions)
    numbers = f"+{file.additions} -{file.deletions}" if is_counted else ""
    if file.unknown:
        numbers += ", " * is_counted + f"{file.unknown} of {file.changes} changes not counted"
    kind = "" if file.kind == "changed" else f", {file.kind}"
    moved = f" from {quote(file.moved_from)}" if file.moved_from is not None else ""
    return f"- {quote(file.path)}: {numbers}{kind}{moved}"


def _describe_command(command: SessionCommand) -> str:
    code = "" if command.exit_code is None else f" → {command.exit_code}"
    return f"- {quote(command.command)}{code}"


def _join_lines(text: str) -> str:
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


def _find_longest(text: str) -> int:
    """The longest run of backticks."""
    return max(map(len, _BACKTICKS.findall(text)), default=0)
