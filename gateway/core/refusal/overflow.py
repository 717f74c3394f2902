"""Did the upstream refuse a request because it is too large, and what did it give away?

Reads what an error says, in the words of some forty providers (FACTS §5). Knows nothing of JSON or streams
(`wire.refusal` does), nor of what is to be done about it.
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

# An error may quote the whole prompt: what it says itself stands at its beginning or at its end.
_READ_CHARACTERS = 4_096
_CODE_CHARACTERS = 128
_MOST_TEXTS = 24
# Who asks, who pays, how often: never about size, whatever the text quotes.
_NEVER = frozenset({401, 402, 403, 407, 429})
# Statuses of a refused request; 200 stands for errors inside a stream or a good answer's place.
_PLAUSIBLE = frozenset({200, 400, 413, 422})
_EMPTY_OVERFLOWS = frozenset({400, 413})
_WINDOW_EXCEEDED = frozenset(
    {"model_context_window_exceeded", "context_window_exceeded", "context_length_exceeded"}
)
_BODY_STATUS = re.compile(r"[45]\d\d")
_QUOTE_MARKS = dict.fromkeys(map(ord, "'\"`“”‘’"))
_IDENTIFIER_GAP = re.compile(r"(?<=[^\W\d])[-_](?=[^\W\d])")
_THOUSANDS = re.compile(r"\b\d{1,3}(?:,\d{3}){1,3}(?![\d,])")
_CUT_NUMBER = "0123456789,._"

OverflowUnit = Literal["tokens", "bytes", "images"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """What an error answer says. status: HTTP's, 200 for an error inside a good answer.

    texts: its message, code, type and the like, in order of trust. is_empty: there was no body at all.
    """

    status: int
    texts: tuple[str, ...]
    is_empty: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Overflow:
    """Too large: a smaller request may pass. Every number is the upstream's own; None where it says none.

    kind: what there is too much of.
    context: tokens of the whole window, prompt and reply together. input: tokens of the prompt alone.
    used: tokens that it counted: prompt and requested reply where it says so, else the prompt; maybe rounded,
    or a lower bound. prompt_tokens: exactly the prompt.
    bytes, images: the most that one request may hold.
    """

    kind: OverflowUnit = "tokens"
    context: int | None = None
    input: int | None = None
    used: int | None = None
    prompt_tokens: int | None = None
    bytes: int | None = None
    images: int | None = None


def is_window_exceeded(finish_reason: str | None) -> bool:
    """The reply ended because the window was full, as some upstreams say instead of an error."""
    return finish_reason is not None and finish_reason.lower() in _WINDOW_EXCEEDED


def parse_overflow(refusal: Refusal) -> Overflow | None:
    """None: it was refused for another reason, or it cannot be told.

    In this order: another reason by status; no body; another reason by words; the window by name; images;
    bytes; the reply alone; words that are likely about the window.
    """
    texts = refusal.texts[:_MOST_TEXTS]
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
    return _read_likely(text) if statuses <= _PLAUSIBLE else None


def _read_likely(text: str) -> Overflow | None:
    if is_images(text):
        images = parse_image_limit(text)
        # A model that takes no image at all would refuse the smaller request, too.
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
    """One in a line, as two texts never make one sentence: no pattern goes beyond a line.

    Codes always count; of the longer texts only the first ones, since all of them may quote the prompt.
    """
    lines: list[str] = []
    room = 2 * _READ_CHARACTERS
    for text in texts:
        if len(text) <= _CODE_CHARACTERS or room > 0:
            lines.append(_make_plain(text))
            room -= len(text)
    return "\n".join(lines)


def _make_plain(text: str) -> str:
    """Lower case, in one line, without quotations and quote marks; identifiers read like words."""
    own = without_quotations(_bounded(text).replace('\\"', '"').replace("\\n", " "))
    plain = " ".join(own.lower().translate(_QUOTE_MARKS).split())
    return _THOUSANDS.sub(_without_commas, _IDENTIFIER_GAP.sub(" ", plain))


def _bounded(text: str) -> str:
    """Its beginning and its end; a number that the cut goes through is left out."""
    if len(text) <= 2 * _READ_CHARACTERS:
        return text
    beginning, end = text[:_READ_CHARACTERS].rstrip(_CUT_NUMBER), text[-_READ_CHARACTERS:].lstrip(_CUT_NUMBER)
    return f"{beginning} … {end}"


def _without_commas(match: re.Match[str]) -> str:
    return match[0].replace(",", "")
