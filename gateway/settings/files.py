"""A settings file as plain values, with the line of each key and with its references replaced.

Does not know what the keys mean. Only plain YAML is accepted: no tags, objects, aliases or duplicate keys.
Texts may hold `${VAR}`, `${VAR:-default}` and `${file:PATH}`; `$${` stands for a literal `${`. Any other
dollar stays as it is, because keys and passwords contain dollars. Replaced text is not searched for
references again.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import yaml
from yaml.constructor import SafeConstructor
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gateway.core.errors import GatewayError

Location = tuple[str | int, ...]

_TAG = "tag:yaml.org,2002:"
_TYPED_SCALARS = frozenset({f"{_TAG}int", f"{_TAG}float", f"{_TAG}bool", f"{_TAG}null"})
# A date or "=" has no meaning here, so both are texts.
_TEXT_SCALARS = frozenset({f"{_TAG}str", f"{_TAG}timestamp", f"{_TAG}value"})
# A referenced file holds a secret or an instruction; a larger one is a mistake (a device, a log file).
MAX_FILE_BYTES = 1 << 20
_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<body>[^}]*)(?P<end>\}?)")
_FILE_REFERENCE = re.compile(r"(?<!\$)\$\{file:([^}]+)\}")
_VARIABLE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<fallback>:-(?P<default>.*))?", re.DOTALL)
_FLOW_HINT = " (inside { } or [ ], a value with ${…} needs quotes)"


@dataclass(frozen=True)
class Problem:
    """Of the settings, worded for the person who wrote them. Never shows a value: it may be a secret."""

    # "FILE:LINE", a command-line option or an environment variable.
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class SettingsError(GatewayError):
    """The settings cannot be used; the message has one line for each problem."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class InterpolationError(ValueError):
    """Names the reference, never its content, which may be a secret."""


@dataclass(frozen=True)
class Document:
    values: dict[str, object]
    # "FILE:LINE" by the location of a key; the empty location stands for the whole file.
    origins: dict[Location, str]
    # Where a text held references: its key decides what type it has (`validate`).
    replaced: frozenset[Location] = frozenset()

    def find_origin(self, location: Location) -> str:
        """The place of the key, or of the nearest section around it."""
        for end in range(len(location), -1, -1):
            if location[:end] in self.origins:
                return self.origins[location[:end]]
        return "settings"

    def find_value(self, location: Location) -> object:
        """None if there is none."""
        found: object = self.values
        for step in location:
            found = found.get(step) if isinstance(found, dict) else None
        return found

    def with_value(self, location: tuple[str, ...], value: object, origin: str) -> "Document":
        """The document with the value at `location`; missing parent sections are added."""
        origins = {at: where for at, where in self.origins.items() if at[: len(location)] != location}
        origins[location] = origin
        replaced = frozenset(at for at in self.replaced if at[: len(location)] != location)
        return Document(_with_entry(self.values, location, value), origins, replaced)


def _with_entry(values: object, location: tuple[str, ...], value: object) -> dict[str, object]:
    section = dict(values) if isinstance(values, dict) else {}
    head, rest = location[0], location[1:]
    section[head] = _with_entry(section.get(head), rest, value) if rest else value
    return section


def parse_scalar(text: str) -> object:
    """The value of an unquoted text in YAML: a number, a boolean, None, or the text itself."""
    tag = yaml.SafeLoader("").resolve(ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]  # untyped in PyYAML's stubs
    try:
        return _typed(ScalarNode(tag, text)) if tag in _TYPED_SCALARS else text
    except ValueError:
        return text  # "0x_" has the form of a number, but no value.


@dataclass(frozen=True)
class SettingsFile:
    """A file as it was when it was read, with those that it names: every worker of a gateway has the same."""

    path: Path
    text: str = field(repr=False)
    # The texts behind `${file:…}`, by the name there. A file that could not be read is missing.
    references: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)


def read_settings_file(path: Path) -> SettingsFile:
    """Raises SettingsError."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        return SettingsFile(path, text, _load_files(text, path.parent))
    except OSError as error:
        raise SettingsError([Problem(str(path), f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError:
        raise SettingsError([Problem(str(path), "is not UTF-8 text")]) from None


def load_document(source: Path | SettingsFile, env: Mapping[str, str]) -> Document:
    """Raises SettingsError with all problems of the file."""
    file = source if isinstance(source, SettingsFile) else read_settings_file(source)
    path = file.path
    root = _compose(file.text, path)
    parser = _Parser(path, env, file.references)
    values = parser.parse_value(root, ()) if root is not None else None
    if not isinstance(values, dict | None):
        parser.add_problem(1, "must be a mapping of settings")
    if parser.problems:
        raise SettingsError(parser.problems)
    parser.origins[()] = str(path)
    return Document(values if isinstance(values, dict) else {}, parser.origins, frozenset(parser.replaced))


def list_files(path: Path) -> tuple[Path, ...]:
    """The file, and those that it names by `${file:…}`, whether they exist or not."""
    try:
        text = path.read_bytes().decode("utf-8-sig", "replace")
    except (OSError, ValueError):
        return (path,)
    names = dict.fromkeys(_FILE_REFERENCE.findall(text))
    return (path, *(path.parent / name for name in names))


class _Loader(yaml.SafeLoader):
    """Refuses aliases: with them a value could contain itself."""

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]  # likewise
            raise yaml.MarkedYAMLError(problem="aliases are not supported", problem_mark=event.start_mark)
        return super().compose_node(parent, index)


def _compose(text: str, path: Path) -> Node | None:
    try:
        loader = _Loader(text)
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        # The error's own text quotes the file, which may hold secrets.
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        hint = _FLOW_HINT if any("${" in each for each in text.splitlines()[line - 1 : line]) else ""
        problem = Problem(f"{path}:{line}", f"not valid YAML: {error.problem or error.context}{hint}")
    except yaml.YAMLError:
        problem = Problem(str(path), "not valid YAML: it contains characters that are not allowed")
    except RecursionError:
        problem = Problem(str(path), "is nested too deeply")
    raise SettingsError([problem])


def _typed(node: ScalarNode) -> object:
    value: object = SafeConstructor().construct_object(node)
    return value


@dataclass
class _Parser:
    path: Path
    env: Mapping[str, str]
    references: Mapping[str, str]
    origins: dict[Location, str] = field(default_factory=dict)
    replaced: set[Location] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def add_problem(self, line: int, text: str) -> None:
        self.problems.append(Problem(f"{self.path}:{line}", text))

    def parse_value(self, node: Node, at: Location) -> object:
        self.origins.setdefault(at, f"{self.path}:{_line(node)}")
        if isinstance(node, MappingNode) and node.tag == f"{_TAG}map":
            return self._parse_mapping(node, at)
        if isinstance(node, SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.parse_value(child, (*at, index)) for index, child in enumerate(node.value)]
        if isinstance(node, ScalarNode):
            return self._parse_scalar(node, at)
        self.add_problem(_line(node), "YAML tags are not supported")
        return None

    def _parse_mapping(self, node: MappingNode, at: Location) -> dict[str, object]:
        values: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = self._parse_key(key_node)
            if key is None:
                continue
            if key in values:
                first = self.origins[*at, key]
                self.add_problem(_line(key_node), f"duplicate key {key!r}, first at {first}")
                continue
            self.origins[*at, key] = f"{self.path}:{_line(key_node)}"
            values[key] = self.parse_value(value_node, (*at, key))
        return values

    def _parse_key(self, node: Node) -> str | None:
        """The key as text, even for a number. Merge keys, references and nested keys are refused."""
        if not isinstance(node, ScalarNode) or node.tag == f"{_TAG}merge":
            self.add_problem(_line(node), "a key must be a plain name")
            return None
        if "${" in node.value:
            self.add_problem(_line(node), "references like ${VAR} are for values, not for keys")
            return None
        return str(node.value)

    def _parse_scalar(self, node: ScalarNode, at: Location) -> object:
        if node.tag in _TEXT_SCALARS:
            return self._parse_text(node, at)
        if node.tag not in _TYPED_SCALARS:
            self.add_problem(_line(node), "YAML tags are not supported")
            return None
        try:
            return _typed(node)
        except (ValueError, KeyError, yaml.YAMLError):
            self.add_problem(_line(node), "not a valid number")
            return None

    def _parse_text(self, node: ScalarNode, at: Location) -> str | None:
        if "${" in node.value:
            self.replaced.add(at)
        try:
            return _REFERENCE.sub(self._replace, node.value)
        except InterpolationError as error:
            self.add_problem(_line(node), str(error))
            return None

    def _replace(self, found: re.Match[str]) -> str:
        """A reference, or what stands for a literal one. Raises InterpolationError."""
        if found.group(0) == "$${":
            return "${"
        if not found.group("end"):
            raise InterpolationError("'${' without its '}' (write '$${' for a literal '${')")
        body = found.group("body")
        if not body.startswith("file:"):
            return _find_variable(body, self.env)
        name = body.removeprefix("file:")
        return self.references[name] if name in self.references else _load_file(name, self.path.parent)


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _find_variable(body: str, env: Mapping[str, str]) -> str:
    """As in a shell, the default after `:-` also replaces a variable that is set but empty."""
    found = _VARIABLE.fullmatch(body)
    if found is None or "${" in body:
        raise InterpolationError("expected ${VAR}, ${VAR:-default} or ${file:PATH}, not nested")
    name = found.group("name")
    if found.group("fallback") is not None:
        return env.get(name) or found.group("default")
    if name not in env:
        hint = f"${{{name}:-TEXT}} sets a default"
        raise InterpolationError(f"environment variable {name} is not set ({hint})")
    return env[name]


def _load_files(text: str, folder: Path) -> Mapping[str, str]:
    """Whatever a text names. Files that cannot be read are left out, because a comment may name them."""
    contents = {}
    for name in dict.fromkeys(_FILE_REFERENCE.findall(text)):
        with suppress(InterpolationError):
            contents[name] = _load_file(name, folder)
    return MappingProxyType(contents)


def _load_file(name: str, folder: Path) -> str:
    """The file's content without trailing line ends, like `$(cat PATH)` in a shell."""
    if not name:
        raise InterpolationError("${file:} has no path")
    try:
        with (folder / name).open("rb") as source:
            content = source.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        raise InterpolationError(f"cannot read file {name!r}: {reason}") from error
    if len(content) > MAX_FILE_BYTES:
        raise InterpolationError(f"file {name!r} is larger than {MAX_FILE_BYTES} bytes")
    try:
        return content.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        # The original error would show the content.
        raise InterpolationError(f"file {name!r} is not UTF-8 text") from None
