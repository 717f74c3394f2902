"""Whether an upstream refused a request because it is too large, and which limits its error states.

Parses the texts of an error as some forty providers word them (docs/design.md, Overflow errors). Does not
know JSON or streams (`wire.refusal` does), nor what to do about the error.
"""

import re
from dataclasses import dataclass
from typing import Literal

from gateway.core.refusal.numbers import (
    TokenNumbers,
    parse_byte_limit,
    parse_image_limit,
    parse_token_numbers,
)
from gateway.core.refusal.phrases import (
    is_bytes,
    is_images,
    is_likely_window,
    is_output_only,
    is_vetoed,
    is_window,
)
from gateway.core.refusal.quotations import without_quotations

# An error may quote the whole prompt; its own words are at the beginning or at the end.
_READ_CHARACTERS = 4_096
_CODE_CHARACTERS = 128
_MAX_TEXTS = 24
# Statuses for authentication, payment and rate limits are never about size, whatever the text quotes.
_NEVER = frozenset({401, 402, 403, 407, 429})
# Statuses of a refused request. 200 stands for an error inside a stream or in a successful response.
_PLAUSIBLE = frozenset({200, 400, 413, 422})
_EMPTY_OVERFLOWS = frozenset({400, 413})
_BODY_STATUS = re.compile(r"[45]\d\d")
_QUOTE_MARKS = dict.fromkeys(map(ord, "'\"`“”‘’"))
_IDENTIFIER_GAP = re.compile(r"(?<=[^\W\d])[-_](?=[^\W\d])")
_THOUSANDS = re.compile(r"\b\d{1,3}(?:,\d{3}){1,3}(?![\d,])")
_CUT_NUMBER = "0123456789,._"

OverflowUnit = Literal["tokens", "bytes", "images"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The content of an error response."""

    # The status of HTTP; 200 for an error inside a successful response.
    status: int
    # Its message, code, type and similar fields, the most reliable first.
    texts: tuple[str, ...]
    # There was no body.
    is_empty: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Overflow:
    """The request was too large; a smaller one may succeed. Numbers are the upstream's, None if unstated."""

    # The unit that there is too much of.
    kind: OverflowUnit = "tokens"
    # Tokens of the whole window, prompt and reply together.
    context: int | None = None
    # Tokens of the prompt alone.
    input: int | None = None
    # Tokens that it counted: prompt and requested reply if it says so, else the prompt. It may be rounded, or
    # a lower bound.
    used: int | None = None
    # Tokens of the prompt, exactly.
    prompt_tokens: int | None = None
    # The most bytes or images that one request may contain.
    bytes: int | None = None
    images: int | None = None


def parse_overflow(refusal: Refusal) -> Overflow | None:
    """None if the request was refused for another reason, or the reason is unclear. The cases in order:

    1. another reason by status; 2. no body; 3. another reason by words; 4. the window by name; 5. images; 6.
    bytes; 7. the reply alone; 8. words that are likely about the window.
    """
    texts = refusal.texts[:_MAX_TEXTS]
    statuses = {refusal.status, *(int(text) for text in texts if _BODY_STATUS.fullmatch(text))}
    if statuses & _NEVER:
        return None
    if refusal.is_empty:
        return Overflow() if refusal.status in _EMPTY_OVERFLOWS else None
    text = _join(texts)
    if is_vetoed(text):
        return None
    if is_window(text):
        return _token_overflow(parse_token_numbers(text))
    return _parse_likely(text) if statuses <= _PLAUSIBLE else None


def _parse_likely(text: str) -> Overflow | None:
    if is_images(text):
        images = parse_image_limit(text)
        # A model that accepts no images would refuse the smaller request, too.
        return Overflow(kind="images", images=images) if images != 0 else None
    if is_bytes(text):
        return Overflow(kind="bytes", bytes=parse_byte_limit(text))
    if is_likely_window(text) and not is_output_only(text):
        return _token_overflow(parse_token_numbers(text))
    return None


def _token_overflow(numbers: TokenNumbers) -> Overflow:
    return Overflow(
        context=numbers.context, input=numbers.input, used=numbers.used, prompt_tokens=numbers.prompt
    )


def _join(texts: tuple[str, ...]) -> str:
    """The texts on one line each, so that no pattern matches across two of them.

    Codes are always included, longer texts only up to a total length, because all of them may quote the
    prompt.
    """
    lines: list[str] = []
    room = 2 * _READ_CHARACTERS
    for text in texts:
        if len(text) <= _CODE_CHARACTERS or room > 0:
            lines.append(_make_plain(text))
            room -= len(text)
    return "\n".join(lines)


def _make_plain(text: str) -> str:
    """Lower case, on one line, without quotations and quote marks, and with identifiers split into words."""
    own = without_quotations(_bounded(text).replace('\\"', '"').replace("\\n", " "))
    plain = " ".join(own.lower().translate(_QUOTE_MARKS).split())
    return _THOUSANDS.sub(_without_commas, _IDENTIFIER_GAP.sub(" ", plain))


def _bounded(text: str) -> str:
    """Beginning and end of a long text; a number at the cut is removed, because it may be incomplete."""
    if len(text) <= 2 * _READ_CHARACTERS:
        return text
    beginning, end = text[:_READ_CHARACTERS].rstrip(_CUT_NUMBER), text[-_READ_CHARACTERS:].lstrip(_CUT_NUMBER)
    return f"{beginning} … {end}"


def _without_commas(match: re.Match[str]) -> str:
    return match[0].replace(",", "")
