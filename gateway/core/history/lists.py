"""What a program knows of replaced messages, and how it reads below a text: requests, work, names.

The values are data of a pivot. They are rendered when it is sent, and the same values give the same bytes, so
every change to the rendering here breaks the prefix of each stored pivot. Nothing is read back out of a text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

FILES_HEADING: Final = "## Files changed (listed by a program)"
COMMANDS_HEADING: Final = "## Commands run (listed by a program)"
NAMES_HEADING: Final = "## Names, word for word (listed by a program; ×n: in n messages)"
EARLIER_HEADING: Final = "## Earlier summary"
ASKED_HEADING: Final = "## What the user asked"
SAID_HEADING: Final = "## Last assistant texts"
# The first line of a digest, below its framing.
DIGEST_HEAD: Final = (
    "This digest was made without a model. It quotes parts of the messages it replaces; "
    "their full text is not shown."
)
ITEM: Final = "- "
SEPARATOR: Final = ", "
BEHIND_FOLDER: Final = ": "
TODO: Final = "todo: "
# What a value takes in memory beside its text.
_VALUE_BYTES: Final = 150
_MAX_COUNT: Final = 999_999
_MAX_LEFT_OUT: Final = 999_999_999
_ENDS: Final = {"created": " (new)", "deleted": " (deleted)"}


@dataclass(frozen=True, slots=True)
class ListedName:
    """A path, a URL, a name in code, or an error code. times: in how many messages it was mentioned."""

    text: str
    times: int = 1

    def __str__(self) -> str:
        return f"{self.text} ×{min(self.times, _MAX_COUNT)}" if self.times > 1 else self.text


@dataclass(frozen=True, slots=True)
class ListedFile:
    path: str
    kind: Literal["created", "changed", "deleted"] = "changed"

    def __str__(self) -> str:
        return self.path + _ENDS.get(self.kind, "")


@dataclass(frozen=True, slots=True)
class ListedCommand:
    """text: on one line. exit_code: None where the result did not tell."""

    text: str
    exit_code: int | None = None

    def __str__(self) -> str:
        return self.text if self.exit_code is None else f"{self.text} → exit {self.exit_code}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Lists:
    """Texts are quoted: nothing in them closes a fence, and each line but the first is indented."""

    # Only digests quote texts: of the summary they go on from, of what users asked, and of the model's last.
    earlier: str = ""
    asked: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    # The newest last.
    files: tuple[ListedFile, ...] = ()
    commands: tuple[ListedCommand, ...] = ()
    # Open items, each on one line.
    todos: tuple[str, ...] = ()
    # The most important first.
    names: tuple[ListedName, ...] = ()
    # How many items of `asked` had no room. It is told behind the first one.
    left_out: int = 0

    @property
    def quoted(self) -> tuple[str, ...]:
        return (*filter(None, (self.earlier,)), *self.asked, *self.said)

    @property
    def weight_bytes(self) -> int:
        """What it takes in memory, about."""
        items = [*self.quoted, *self.todos, *map(str, (*self.files, *self.commands, *self.names))]
        return sum(map(len, items)) + _VALUE_BYTES * len(items)


NO_LISTS: Final = Lists()


class Told(NamedTuple):
    """What stands for replaced messages: a text, and what a program knows beside it."""

    summary: str = ""
    lists: Lists = NO_LISTS

    @property
    def text(self) -> str:
        """As it is sent."""
        return "\n\n".join(filter(None, (self.summary, render_lists(self.lists))))

    @property
    def spelled_out(self) -> str:
        """With each file and name on a line of its own, with its folder: what a search for names looks at."""
        lists = self.lists
        listed = (*lists.files, *lists.commands, *lists.todos, *lists.names)
        return "\n".join([self.summary, *lists.quoted, *map(str, listed)])


NOTHING_TOLD: Final = Told()


def render_lists(lists: Lists) -> str:
    """Below a summary; empty if there is nothing to list."""
    note = (f"[{min(lists.left_out, _MAX_LEFT_OUT)} more left out]",) if lists.left_out else ()
    sections: tuple[tuple[str, Sequence[str]], ...] = (
        (EARLIER_HEADING, (lists.earlier,) if lists.earlier else ()),
        (ASKED_HEADING, (*lists.asked[:1], *note, *lists.asked[1:])),
        (SAID_HEADING, lists.said),
        (FILES_HEADING, group_paths(map(str, lists.files))),
        (COMMANDS_HEADING, [str(command) for command in lists.commands]),
        (NAMES_HEADING, [*(TODO + todo for todo in lists.todos), *group_paths(map(str, lists.names))]),
    )
    return "\n\n".join(
        "\n".join([heading, *(ITEM + line for line in lines)]) for heading, lines in sections if lines
    )


def drop_copied_lists(summary: str) -> str:
    """A model's text without our own lists at its end, which it may copy from the summary before."""
    lines = summary.splitlines()
    headings = (FILES_HEADING, COMMANDS_HEADING, NAMES_HEADING)
    start = next((at for at, line in enumerate(lines) if line.strip() in headings), len(lines))
    copied = lines[start:]
    is_list = all(line.startswith(ITEM) or line.strip() in ("", *headings) for line in copied)
    return ("\n".join(lines[:start]).rstrip() if copied and is_list else "") or summary


def group_paths(names: Iterable[str]) -> list[str]:
    """Lines of a list: files by folder, then all other names on one line."""
    folders: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        folder, rest = split_path(name)
        folders.setdefault(folder, []).append(rest)
    plain = folders.pop("", [])
    lines = [
        f"{folder}{BEHIND_FOLDER}{SEPARATOR.join(rest)}" if len(rest) > 1 else f"{folder}{rest[0]}"
        for folder, rest in folders.items()
    ]
    return [*lines, *([SEPARATOR.join(plain)] if plain else [])]


def split_path(name: str) -> tuple[str, str]:
    """The folder of a path, with its last slash, and the rest; a folder of "" for everything else."""
    path = name.partition(" ×")[0]
    if "://" in name or " " in path:
        return "", name
    at = max(name.rfind("/"), name.rfind("\\")) + 1
    return ("", name) if at >= len(path) else (name[:at], name[at:])
