"""What a query looks for: words and phrases. Whatever stands in a query is only text.

The words of a text are its runs of letters and digits, as the tokenizer of the index makes them. What that
tokenizer cannot see is added to the index as *extra words*: the parts of `camelCase`, pairs of characters in
scripts without spaces, and emoji.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

# A query is a question or some names. Of a longer text the beginning and the end are used.
_QUERY_CHARS: Final = 4_000
# Each takes the index up to some milliseconds. Two are looked for once more, as beginnings.
_MOST_TERMS: Final = 22
_MOST_PHRASES: Final = 8
_LONGEST_WORD_CHARS: Final = 200
# A shorter word begins too many others, and the index does not hold its beginnings.
_SHORTEST_BEGINNING_CHARS: Final = 4

_UNSPACED: Final = (
    r"\u0e00-\u0eff\u1780-\u17ff\u2e80-\u9fff\ua000-\ua4cf\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
)
_RUN: Final = re.compile(rf"[{_UNSPACED}]+")
_EMOJI: Final = re.compile("[\u2600-\u27bf\U0001f000-\U0001faff]")
_WORD: Final = re.compile(r"[^\W_]+")
# Names, paths, addresses: words that hang together by other characters than spaces.
# It begins at the beginning of a word only: to try each character of a long word would take seconds.
_COMPOUND: Final = re.compile(r"(?<!\w)\w+(?:[-./:\\@#_+~%]+\w+)+")
_ASCII_WORD: Final = re.compile(r"[A-Za-z0-9]+")
_COMBINING: Final = re.compile("[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+")
_CAMEL_PART: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# Words of English that say nothing about what is looked for; they stand in most pieces.
_COMMON_WORDS: Final = (
    "a about all also am an and any are as at be because been but by can could did do does for from had has "
    "have how i if in into is it its just let me my no not now of on or our please so some than that the "
    "their them then there these they this to too up us use using was we were what when where which who why "
    "will with would you your"
)
_COMMON: Final = frozenset(_COMMON_WORDS.split())


class Term(NamedTuple):
    """text: as it stands in the query; a word in lower case. may_begin_words: whether it may also be the
    beginning of a longer word. Of a phrase, the words must follow each other.
    """

    text: str
    may_begin_words: bool = False


# Each once; names and paths as phrases first.
QueryTerms = tuple[Term, ...]


def find_terms(query: str) -> QueryTerms:
    text = _shorten(query)
    found = [word for word in _WORD.findall(text) if len(word) <= _LONGEST_WORD_CHARS]
    plain = [word for word in dict.fromkeys(map(fold, found)) if not _RUN.search(word)]
    telling = [word for word in plain if word not in _COMMON] or plain
    terms = [Term(phrase) for phrase in dict.fromkeys(_list_compounds(text))][:_MOST_PHRASES]
    terms += [Term(word, len(word) >= _SHORTEST_BEGINNING_CHARS) for word in telling]
    known = set(telling)
    terms += [Term(word) for word in _find_extra(text, found) if word not in known]
    return tuple(terms)[:_MOST_TERMS]


def find_extra_words(text: str) -> list[str]:
    """Of a text that is put into the index."""
    return _find_extra(text, dict.fromkeys((_ASCII_WORD if text.isascii() else _WORD).findall(text)))


def fold(word: str) -> str:
    """As the index keeps it: in lower case, without diacritics."""
    if word.isascii():
        return word.lower()
    decomposed = unicodedata.normalize("NFD", word.lower())
    return unicodedata.normalize("NFC", _COMBINING.sub("", decomposed))


def _find_extra(text: str, words: Iterable[str]) -> list[str]:
    found: dict[str, None] = {}
    for word in words:
        if not _is_simple(word) and len(word) <= _LONGEST_WORD_CHARS:
            found.update(dict.fromkeys(part.lower() for part in _CAMEL_PART.findall(word)))
    if not text.isascii():
        for run in _RUN.findall(text):
            found.update(dict.fromkeys(run[at : at + 2] for at in range(max(1, len(run) - 1))))
        found.update(dict.fromkeys(f"u{ord(sign):x}" for sign in _EMOJI.findall(text)))
    return list(found)


def _is_simple(word: str) -> bool:
    """Whether its letters show no parts."""
    return word.islower() or word.isupper() or word.isdigit() or word[1:].islower() or not word.isascii()


def quote_term(term: Term) -> str:
    """An expression of SQLite's full-text search, in which the term is no more than text."""
    return '"' + term.text.replace('"', '""').replace("\0", " ") + '"'


def _shorten(query: str) -> str:
    if len(query) <= _QUERY_CHARS:
        return query
    half = _QUERY_CHARS // 2
    return f"{query[:half]} {query[-half:]}"


def _list_compounds(text: str) -> Iterator[str]:
    """Longer ones are cut, which finds what begins alike."""
    for compound in _COMPOUND.findall(text):
        if not _RUN.search(compound):
            yield compound[:_LONGEST_WORD_CHARS]
