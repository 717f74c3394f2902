"""A YAML file as plain values that remember where each of them was written.

Knows nothing of what the keys mean. Only plain YAML: no tags, no objects, no aliases, no duplicate keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from yaml.constructor import SafeConstructor
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gateway.settings.errors import Problem, SettingsError
from gateway.settings.interpolation import InterpolationError, apply_interpolation

Location = tuple[str | int, ...]

_TAG = "tag:yaml.org,2002:"
_TYPED_SCALARS = frozenset({f"{_TAG}int", f"{_TAG}float", f"{_TAG}bool", f"{_TAG}null"})
# Dates have no meaning here, and "=" is a text.
_TEXT_SCALARS = frozenset({f"{_TAG}str", f"{_TAG}timestamp", f"{_TAG}value"})
_FLOW_HINT = " (inside { } or [ ], a value with ${…} needs quotes)"


@dataclass(frozen=True)
class Document:
    """`origins` maps the location of a key to "FILE:LINE"; the empty location is the whole."""

    values: dict[str, object]
    origins: dict[Location, str]

    def find_origin(self, location: Location) -> str:
        """Where the key was written, or else the nearest section around it."""
        for end in range(len(location), -1, -1):
            if location[:end] in self.origins:
                return self.origins[location[:end]]
        return "settings"

    def with_value(self, location: tuple[str, ...], value: object, origin: str) -> "Document":
        """Replace what stands at `location`; its parents become sections where they are missing."""
        origins = {at: where for at, where in self.origins.items() if at[: len(location)] != location}
        origins[location] = origin
        return Document(_with_entry(self.values, location, value), origins)


def _with_entry(values: object, location: tuple[str, ...], value: object) -> dict[str, object]:
    section = dict(values) if isinstance(values, dict) else {}
    head, rest = location[0], location[1:]
    section[head] = _with_entry(section.get(head), rest, value) if rest else value
    return section


def parse_scalar(text: str) -> object:
    """The value that YAML gives an unquoted text: a number, a truth value, nothing, or the text."""
    tag = yaml.SafeLoader("").resolve(ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    try:
        return _typed(ScalarNode(tag, text)) if tag in _TYPED_SCALARS else text
    except ValueError:
        return text  # "0x_" looks like a number and is none


def load_document(path: Path, env: Mapping[str, str]) -> Document:
    """Raises SettingsError with every problem of the file."""
    text = _load_text(path)
    root = _compose(text, path)
    walk = _Walk(path, env)
    values = walk.read_value(root, ()) if root is not None else {}
    if values is None:
        values = {}
    if not isinstance(values, dict):
        walk.add_problem(1, "must be a mapping of settings")
    if walk.problems:
        raise SettingsError(walk.problems)
    walk.origins[()] = str(path)
    return Document(values if isinstance(values, dict) else {}, walk.origins)


def _load_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise SettingsError([Problem(str(path), f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError:
        raise SettingsError([Problem(str(path), "is not UTF-8 text")]) from None


class _Loader(yaml.SafeLoader):
    """Refuses aliases: they allow values that hold themselves, and a file says more plainly what it means."""

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are not supported", problem_mark=event.start_mark)
        return super().compose_node(parent, index)


def _compose(text: str, path: Path) -> Node | None:
    try:
        loader = _Loader(text)
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        # Not the error itself: its text quotes the file, and the file may hold secrets.
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        hint = _FLOW_HINT if "${" in _line_of(text, line) else ""
        problem = Problem(f"{path}:{line}", f"not valid YAML: {error.problem or error.context}{hint}")
    except yaml.YAMLError:
        problem = Problem(str(path), "not valid YAML: it holds characters that are not allowed")
    except RecursionError:
        problem = Problem(str(path), "is nested too deeply")
    raise SettingsError([problem])


def _line_of(text: str, line: int) -> str:
    lines = text.splitlines()
    return lines[line - 1] if line <= len(lines) else ""


def _typed(node: ScalarNode) -> object:
    value: object = SafeConstructor().construct_object(node)
    return value


@dataclass
class _Walk:
    path: Path
    env: Mapping[str, str]
    origins: dict[Location, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add_problem(self, line: int, text: str) -> None:
        self.problems.append(Problem(f"{self.path}:{line}", text))

    def read_value(self, node: Node, at: Location) -> object:
        self.origins.setdefault(at, f"{self.path}:{_line(node)}")
        if isinstance(node, MappingNode) and node.tag == f"{_TAG}map":
            return self._read_mapping(node, at)
        if isinstance(node, SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.read_value(child, (*at, index)) for index, child in enumerate(node.value)]
        if isinstance(node, ScalarNode):
            return self._read_scalar(node)
        self.add_problem(_line(node), "YAML tags are not supported")
        return None

    def _read_mapping(self, node: MappingNode, at: Location) -> dict[str, object]:
        values: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = self._read_key(key_node)
            if key is None:
                continue
            if key in values:
                first = self.origins[*at, key]
                self.add_problem(_line(key_node), f"duplicate key {key!r}, first at {first}")
                continue
            self.origins[*at, key] = f"{self.path}:{_line(key_node)}"
            values[key] = self.read_value(value_node, (*at, key))
        return values

    def _read_key(self, node: Node) -> str | None:
        """Names may look like numbers; merge keys, references and nested keys are refused."""
        if not isinstance(node, ScalarNode) or node.tag == f"{_TAG}merge":
            self.add_problem(_line(node), "a key must be a plain name")
            return None
        if "${" in node.value:
            self.add_problem(_line(node), "references like ${VAR} are for values, not for keys")
            return None
        return str(node.value)

    def _read_scalar(self, node: ScalarNode) -> object:
        if node.tag in _TEXT_SCALARS:
            return self._read_text(node)
        if node.tag not in _TYPED_SCALARS:
            self.add_problem(_line(node), "YAML tags are not supported")
            return None
        try:
            return _typed(node)
        except (ValueError, KeyError, yaml.YAMLError):
            self.add_problem(_line(node), "not a number")
            return None

    def _read_text(self, node: ScalarNode) -> str | None:
        try:
            return apply_interpolation(node.value, self.env, self.path.parent)
        except InterpolationError as error:
            self.add_problem(_line(node), str(error))
            return None


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1
