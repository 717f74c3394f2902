"""Finds what a text mentions word for word: facts (paths, URLs, names in backticks, error codes), and names,
which are facts and identifiers that are written like code.

Knows one text. What looks like a key or password is never repeated. Facts are worth repeating in a list; an
identifier may be of any kind, so names tell what a call used, or what one text has that another one lacks.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

# A longer fact is left out, because a cut path is a wrong path.
LONGEST_FACT_CHARS: Final = 200
# Every repetition below is possessive, atomic or bounded and starts at the beginning of a word, so that the
# time is linear in the length of any text.
_URL: Final = re.compile(r"(?<![\w+.-])[A-Za-z][A-Za-z0-9+.-]{1,15}+://[^\s<>\"'`()\[\]{}\\|^]{3,1000}")
_PATH: Final = re.compile(
    r"(?<![\w./\\@~+%$})\]>*-])"
    # Not `(?:…)++`: before 3.11.5, `re` keeps half of its last round. A fact has no more parts than these.
    r"(?:[A-Za-z]:(?>(?:(?:/|\\{1,2})[\w.@~+%-]++){1,101})|(?:[\w.@~+%-]++)?+(?>(?:/[\w.@~+%-]++){1,101}))"
)
_QUOTED: Final = re.compile(r"(?<!`)`([\w.@#$/~:-][^`\s\"'{}]{2,119})`(?!`)")
_EXCEPTION: Final = re.compile(r"\b[A-Z][A-Za-z0-9]{1,60}(?:Error|Exception)\b")
_CODE: Final = re.compile(r"\b(?:E|TS|CS|ORA-|CVE-\d{4}-)\d{3,7}\b")
_STATUS: Final = re.compile(r"\b(?:HTTP(?:/[\d.]{1,3})?|[Ss]tatus(?: [Cc]ode)?)[ :=]{1,3}([45]\d\d)\b")
_ERRNO: Final = re.compile(
    r"\bE(?:NOENT|ACCES|PERM|EXIST|CONNREFUSED|CONNRESET|TIMEDOUT|PIPE|ADDRINUSE|NOSPC|MFILE|ISDIR|NOTDIR"
    r"|NOTEMPTY|AGAIN|INVAL|IO|BUSY|NOMEM|HOSTUNREACH|NOTFOUND|RESOLVE)\b"
)
_EXTENSION: Final = re.compile(r"[^.]\.[A-Za-z][A-Za-z0-9]{0,9}\Z")
_TRAILING: Final = ".,;:!?*_~-"
# `grep -n -C` writes a dash and the number behind the path of a line of context.
_GREP_CONTEXT: Final = re.compile(r"(\.[A-Za-z][A-Za-z0-9]{0,9})-\d{1,7}(?:-.*)?\Z")
# Devices, and places that stand for another one in documents.
_NO_FILE: Final = re.compile(r"/(?:dev|proc)/|.*(?<!\w)path/to/", re.DOTALL)
# `.py` alone is a kind of file; a short word of lower-case letters says nothing.
_SUFFIX: Final = re.compile(r"\.(?!env\b|git\b)[A-Za-z][A-Za-z0-9]{0,4}\Z|[a-z]{1,4}\Z")
_LINE_NUMBER: Final = re.compile(r"(?::\d{1,7}(?:-\d{1,7})?){1,2}\Z")

# Words joined by underscores or by capitals. Bounded, so that the time is linear in the length of any text.
_IDENTIFIER: Final = re.compile(
    r"\b(?:[A-Za-z][A-Za-z0-9]{0,59}_[A-Za-z0-9_]{1,59}|[a-z][a-z0-9]{1,59}[A-Z][A-Za-z0-9]{1,59}"
    r"|[A-Z][a-z0-9]{1,59}[A-Z][A-Za-z0-9]{1,59})\b"
)
# A shorter one is a part of too many others.
_SHORTEST_NAME_CHARS: Final = 6
_LONGEST_NAME_CHARS: Final = 60

_KEY: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:sk|pk|rk|xox[a-z]|github_pat|glpat)[-_][A-Za-z0-9_-]{12}"
    r"|(?:gh[opsur]_|hf_|npm_|pypi-|AKIA|ASIA|AIza|ya29|eyJ)[A-Za-z0-9_-]{14})"
)
_NAMED_SECRET: Final = re.compile(
    r"://[^\s/@]{1,200}@|(?:key|token|secret|passw(?:or)?d|pwd|credentials?)[\"']?[=:][^\s/]", re.IGNORECASE
)
_LONG_WORD: Final = re.compile(r"[A-Za-z0-9_+=-]{20,}")
_UUID: Final = re.compile(r"(?<![0-9A-Fa-f])[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![0-9A-Fa-f])")
# The share of neighboring characters of different kinds (lower, upper, digit) in a long word: about a half in
# a random key, a fifth in words written together.
_RANDOM_SHARE: Final = 0.3


def find_facts(text: str) -> tuple[str, ...]:
    """URLs, paths, names in backticks and error codes, each once and printable. See also `is_secret`."""
    return tuple(
        fact
        for fact in dict.fromkeys(_iter_facts(text))
        if 2 < len(fact) <= LONGEST_FACT_CHARS and fact.isprintable()
    )


def find_names(text: str) -> tuple[str, ...]:
    """Each once, without what looks like a key or a password."""
    identifiers = [
        name for name in _IDENTIFIER.findall(text) if _SHORTEST_NAME_CHARS <= len(name) <= _LONGEST_NAME_CHARS
    ]
    found = dict.fromkeys([*find_facts(text), *identifiers])
    return tuple(name for name in found if not is_secret(name))


def is_secret(fact: str) -> bool:
    """Whether it looks like a key or contains one. A UUID is allowed in paths, where it names a session."""
    if _KEY.search(fact) or _NAMED_SECRET.search(fact):
        return True
    is_path = "://" not in fact and ("/" in fact or "\\" in fact)
    words = _LONG_WORD.findall(_UUID.sub("", fact) if is_path else fact)
    return any(_is_random(word) for word in words)


def _iter_facts(text: str) -> Iterator[str]:
    if "://" in text:
        for found in _URL.findall(text):
            yield _clean_url(found)
        # The text after a user name may look like a path and be a password.
        text = _URL.sub(" ", text)
    if "/" in text or "\\" in text:
        is_diff = "diff --git " in text
        for found in _PATH.findall(text):
            yield _clean_path(found, is_diff=is_diff)
    if "`" in text:
        for found in _QUOTED.findall(text):
            yield _clean_quoted(found)
    if "Error" in text or "Exception" in text:
        yield from _EXCEPTION.findall(text)
    yield from _CODE.findall(text)
    yield from (f"HTTP {status}" for status in _STATUS.findall(text))
    yield from _ERRNO.findall(text)


def _clean_url(found: str) -> str:
    """Without user, password, query and fragment, which may contain tokens; empty if that is unclear."""
    scheme, _, rest = found.rstrip(_TRAILING).partition("://")
    rest = re.split("[?#;]", rest, maxsplit=1)[0]
    authority, slash, path = rest.partition("/")
    authority = authority.rpartition("@")[2]
    host, colon, port = authority.partition(":")
    is_host = "." in host or host == "localhost" or (host and port.isdigit())
    if not is_host or (colon and not port.isdigit()):
        return ""
    return f"{scheme}://{authority}{slash}{path}".rstrip(_TRAILING + "/")


def _clean_path(found: str, *, is_diff: bool) -> str:
    """The path if it is certainly one (absolute with two names, or with an extension), else empty."""
    path = found.rstrip(_TRAILING).removeprefix("./").replace("\\\\", "\\")
    path = _GREP_CONTEXT.sub(r"\1", path)
    if _NO_FILE.match(path):
        return ""
    if is_diff and path[:2] in ("a/", "b/"):
        path = path[2:]
    depth = path.count("/") + path.count("\\")
    is_absolute = path[:1] == "/" or path[:2] == "~/" or path[1:2] == ":"
    if is_absolute and depth > 1:
        return path
    return path if depth and _EXTENSION.search(path) else ""


def _clean_quoted(found: str) -> str:
    if "://" in found:
        return _clean_url(found)
    name = _LINE_NUMBER.sub("", found).rstrip(_TRAILING).removeprefix("./")
    name = _GREP_CONTEXT.sub(r"\1", name)
    is_noise = "*" in name or _SUFFIX.match(name) or _NO_FILE.match(name)
    return name if any(letter.isalpha() for letter in name) and not is_noise else ""


def _is_random(word: str) -> bool:
    if not any(letter.isdigit() for letter in word) or not any(letter.isalpha() for letter in word):
        return False
    kinds = [2 if letter.isdigit() else int(letter.isupper()) for letter in word if letter.isalnum()]
    changes = sum(before != after for before, after in pairwise(kinds))
    return len(kinds) >= 16 and changes >= _RANDOM_SHARE * (len(kinds) - 1)
