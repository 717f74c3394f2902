"""The regular expressions of a package: where they stand, how they are used, and texts that strain them.

A text is made from the pattern itself: what one of its parts matches, again and again, so that each attempt
begins well and fails late.
"""

import ast
import dataclasses
import importlib
import pkgutil
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

# Python's own reader of patterns. It is not public, and nothing else says what a pattern is made of.
_READER: Any = importlib.import_module("re._parser")
# These go on behind a match; the others end with the first.
_WHOLE = frozenset({"finditer", "findall", "sub", "subn", "split"})
_METHODS = _WHOLE | {"match", "fullmatch", "search"}
_USUAL = 'aA0_- \t\n\r.,:/\\"<[(`#'
_CANDIDATES = dict.fromkeys([*_USUAL, *map(chr, range(33, 127))])
# From here on a repetition counts as endless.
_ENDLESS = 200
_VARIANTS = 3
_UNLIKELY = "\x00"
_CATEGORIES = {"CATEGORY_DIGIT": r"\d", "CATEGORY_SPACE": r"\s", "CATEGORY_WORD": r"\w"}
_CHARS = 4_096
# Too little to look closer at; what a verdict needs; what no short text takes.
_NOTHING_SECONDS, _FLOOR_SECONDS, _AGES_SECONDS = 0.0003, 0.05, 0.07


@dataclass(frozen=True)
class Use:
    """A pattern as the code uses it. method: match, fullmatch, search, or finditer for all that go on."""

    place: str
    pattern: re.Pattern[Any]
    method: str

    def run(self, text: str) -> None:
        subject: Any = text if isinstance(self.pattern.pattern, str) else text.encode("utf-8", "replace")
        if self.method == "finditer":
            for _ in self.pattern.finditer(subject):
                pass
        else:
            getattr(self.pattern, self.method)(subject)


@dataclass(frozen=True)
class Pump:
    """What is repeated, and what stands once before it."""

    prefix: str
    body: str

    def write(self, chars: int) -> str:
        return self.prefix + self.body * (chars // len(self.body)) + _UNLIKELY


def is_linear(use: Use, pump: Pump) -> bool:
    """Does one long text take as long as four of a quarter of its length? Quadratic: four times as long.

    The clock only says what needs a closer look. The verdict goes by the processor's own time, three times:
    no load on the machine makes a pattern fail.
    """
    if any(_takes_ages(use, pump.write(chars)) for chars in (22 * len(pump.body), 256, 1_024)):
        return False
    short, middle, long = (pump.write(_CHARS << shift) for shift in (0, 2, 4))
    quick = min(_measure(time.perf_counter, use, short, 1) for _ in range(2))
    slow = _measure(time.perf_counter, use, middle, 1) if quick < _AGES_SECONDS else quick
    if slow < max(7 * quick, _NOTHING_SECONDS) and quick < _AGES_SECONDS:
        return True
    pair = (short, middle) if slow > _AGES_SECONDS else (middle, long)
    return any(_is_proportional(use, *pair) for _ in range(3))


def _takes_ages(use: Use, text: str) -> bool:
    clocks = (time.perf_counter, time.process_time)
    return all(_measure(clock, use, text, 1) > _AGES_SECONDS for clock in clocks)


def _is_proportional(use: Use, quarter: str, whole: str) -> bool:
    together = _measure(time.process_time, use, whole, 1)
    return together < _FLOOR_SECONDS or together < 2.5 * _measure(time.process_time, use, quarter, 4)


def _measure(clock: Callable[[], float], use: Use, text: str, repeats: int) -> float:
    started = clock()
    for _ in range(repeats):
        use.run(text)
    return clock() - started


def find_uses(package: ModuleType) -> list[Use]:
    """Of every pattern that a module holds, in a variable, a table or a class, or names in a call of `re`."""
    uses: dict[tuple[object, str], Use] = {}
    for module, tree in _read_all(package):
        for use in _find_in_module(module, tree):
            uses.setdefault((use.pattern, use.method), use)
    return list(uses.values())


def find_makers(package: ModuleType) -> list[str]:
    """Functions that make patterns: those that are made while a request is served are in no variable."""
    return [
        f"{module.__name__}.{function.name}"
        for module, tree in _read_all(package)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        and any(_name_call(node) == "compile" for node in ast.walk(function))
    ]


def _read_all(package: ModuleType) -> Iterator[tuple[ModuleType, ast.Module]]:
    """The modules that say `re`."""
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        spec: Any = found.module_finder.find_spec(found.name, None)
        text = Path(spec.origin).read_text("utf-8")
        if "import re\n" in text or "re.Pattern" in text:
            yield importlib.import_module(found.name), ast.parse(text)


def _find_in_module(module: ModuleType, tree: ast.Module) -> Iterator[Use]:
    nodes = list(ast.walk(tree))
    owned = {
        (node.value.id, node.attr)
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in _METHODS
    }
    held = {name: list(_find_patterns(value, module)) for name, value in vars(module).items()}
    # What a variable of a function is asked for: it may be one of a table.
    asked = {method for name, method in owned if not held.get(name) and name != "re"}
    for name, patterns in held.items():
        methods = {method for owner, method in owned if owner == name}
        if patterns and (not methods or _is_passed_on(nodes, name)):
            methods |= asked or {"search", "finditer"}
        for pattern in patterns:
            yield from _name_uses(f"{module.__name__}.{name}", pattern, methods)
    for function in (node for node in nodes if isinstance(node, ast.FunctionDef)):
        for node in ast.walk(function):
            text = node.args[0] if isinstance(node, ast.Call) and _name_call(node) in _METHODS else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str | bytes):
                place = f"{module.__name__}.{function.name}"
                yield from _name_uses(place, re.compile(text.value), {str(_name_call(node))})


def _name_uses(place: str, pattern: re.Pattern[Any], methods: Iterable[str]) -> Iterator[Use]:
    for method in sorted({"finditer" if method in _WHOLE else method for method in methods}):
        yield Use(place, pattern, method)


def _name_call(node: ast.AST) -> str | None:
    """The function of `re` that is called."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=name)):
            return name
        case _:
            return None


def _is_passed_on(nodes: list[ast.AST], name: str) -> bool:
    """Is it an argument, or part of something else?"""
    owners = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    loads = (node for node in nodes if isinstance(node, ast.Name) and node.id == name)
    return any(isinstance(load.ctx, ast.Load) and id(load) not in owners for load in loads)


def _find_patterns(value: object, module: ModuleType, depth: int = 5) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif depth:
        for part in _list_parts(value, module):
            yield from _find_patterns(part, module, depth - 1)


def _list_parts(value: object, module: ModuleType) -> Iterable[object]:
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, tuple | list | set | frozenset):
        return value
    if isinstance(value, type):
        is_ours = value.__module__ == module.__name__
        return [part for name, part in vars(value).items() if is_ours and name[:2] != "__"]
    if dataclasses.is_dataclass(value):
        return [
            getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)
        ]
    return ()


def find_pumps(pattern: re.Pattern[Any], most: int | None = None) -> list[Pump]:
    """most: an even choice of so many."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tree = _READER.parse(source, pattern.flags & ~re.UNICODE)
    found = [pump for variant in range(_VARIANTS) for pump in _find_pumps(tree, "", variant)]
    before = dict.fromkeys(["", *(pump.prefix for pump in found)])
    pumps = dict.fromkeys([*found, *(Pump(prefix, usual) for prefix in before for usual in _USUAL)])
    chosen = [pump for pump in pumps if pump.body]
    return chosen[:: -(-len(chosen) // most)] if most else chosen


def _find_pumps(tree: Any, before: str, variant: int) -> Iterator[Pump]:
    """The body of each endless loop behind its prefix, and each beginning of the pattern."""
    sample = before
    for operation, argument in tree:
        name = str(operation)
        if name.endswith("_REPEAT") and argument[1] >= _ENDLESS:
            yield Pump(sample, _write(argument[2], variant))
        for inner in _list_inner(name, argument):
            yield from _find_pumps(inner, sample, variant)
        sample += _write_one(name, argument, variant)
        yield Pump("", sample)


def _list_inner(name: str, argument: Any) -> list[Any]:
    match name:
        case "BRANCH":
            return list(argument[1])
        case "SUBPATTERN":
            return [argument[3]]
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return [argument[2]]
        case "ATOMIC_GROUP":
            return [argument]
        case "ASSERT" | "ASSERT_NOT":
            return [argument[1]]
        case _:
            return []


def _write(tree: Any, variant: int) -> str:
    """A text that the part matches, or nearly."""
    return "".join(_write_one(str(operation), argument, variant) for operation, argument in tree)


def _write_one(name: str, argument: Any, variant: int) -> str:
    match name:
        case "LITERAL":
            return chr(int(argument))
        case "NOT_LITERAL":
            return "b" if argument == ord("a") else "a"
        case "ANY":
            return ("a", " ", ".")[variant]
        case "IN":
            return _pick(_list_members(argument), variant)
        case "BRANCH":
            return _pick([_write(branch, variant) for branch in argument[1]], variant)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return _write(argument[2], variant) * int(max(argument[0], min(variant, argument[1])))
        case "SUBPATTERN" | "ATOMIC_GROUP":
            return _write(_list_inner(name, argument)[0], variant)
        case _:
            return ""


def _pick(found: list[str], variant: int) -> str:
    return found[variant % len(found)] if found else ""


def _list_members(argument: Any) -> list[str]:
    """Of a class: the usual ones first, as other parts of the pattern match them, too."""
    items = [(str(operation), value) for operation, value in argument]
    is_negated = ("NEGATE", None) in items
    own = [
        chr(value if kind == "LITERAL" else value[0]) for kind, value in items if kind in ("LITERAL", "RANGE")
    ]
    candidates = [*_CANDIDATES, *(own if not is_negated else ())]
    return [char for char in candidates if any(_fits(char, *item) for item in items) != is_negated]


def _fits(char: str, kind: str, value: Any) -> bool:
    match kind:
        case "LITERAL":
            return bool(ord(char) == value)
        case "RANGE":
            return bool(value[0] <= ord(char) <= value[1])
        case "CATEGORY":
            name = str(value).replace("CATEGORY_NOT_", "CATEGORY_")
            return (re.match(_CATEGORIES[name], char) is None) == ("_NOT_" in str(value))
        case _:
            return False
