"""Whether an upstream refused a request because it is too large, and which limits its error states.

Parses the texts of an error as some forty providers word them (docs/design.md, Overflow errors). The phrases
match the plain text that `_make_plain` makes: lower case, without quote marks, with spaces for underscores
and for hyphens between letters, so that a code (`context_length_exceeded`) and a sentence look alike. Every
gap in a pattern is bounded, so that the time is linear in the length of any text. Does not know JSON or
streams (`wire.refusal` does), nor what to do about the error.
"""

import re
from dataclasses import dataclass
from typing import Literal

from gateway.core.counts import LARGEST_COUNT


def _any_of(*phrases: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{phrase})" for phrase in phrases))


# Errors that waiting, paying or logging in would resolve, but not a smaller request. OpenAI uses
# `string_above_max_length` for a single field, such as `user`.
VETO = _any_of(
    r"rate ?limit",
    r"\bper (?:second|minute|min|hour|day)\b",
    r"\b[tr]p[md]\b",
    r"throttl",
    r"quota",
    r"\bbilling\b",
    r"\bcredits?\b",
    r"insufficient balance",
    r"too ?many ?requests",
    r"please wait",
    r"above max length",
    r"string too long",
    r"api ?key",
)
_WINDOW_WORD = r"context ?(?:length|window|size|limit)"
_MAXIMUM = r"max(?:imum)?"
# Unambiguous phrases, which are valid with almost every status (see `parse_overflow`).
WINDOW = _any_of(
    r"\b(?:exceed(?:s|ed|ing)?|overflows?|over the|(?:longer|greater|larger|more) than)\b"
    rf".{{0,80}}\b{_WINDOW_WORD}",
    rf"\bexceed(?:s|ed)?\b.{{0,40}}\b{_MAXIMUM} context\b",
    # This does not match the parameter context_length_exceeded_behavior.
    rf"{_WINDOW_WORD}\b.{{0,60}}\b(?:exceed(?:s|ed)?|overflow)\b(?! behavior)",
    rf"{_WINDOW_WORD} ?exceeded(?! behavior)",
    r"exceed context size",
    r"context (?:length )?(?:overflow|too (?:large|long))",
    rf"\b{_MAXIMUM} context (?:length|window|size|limit)\b.{{0,30}}\d",
    rf"{_WINDOW_WORD} is only \d",
    r"\b(?:prompt|input|conversation)(?: length)?(?: \([^)]{0,40}\))?(?: is)? too (?:long|large)\b",
    r"\b(?:prompt|input|requested) token count\b.{0,40}\b(?:exceeds|cannot exceed|only supports)",
    r"number of (?:input |prompt )?tokens in the prompt.{0,40}\bcannot exceed",
    r"exceeds the maximum number of (?:input )?tokens",
    rf"\b{_MAXIMUM} (?:allowed )?(?:prompt|input) length (?:is|of)\b",
    rf"\b(?:prompt|input)(?: length)?(?: \(?\d{{1,12}}(?: tokens)?\)?)? exceeds (?:the )?{_MAXIMUM}\b"
    r".{0,20}length",
    r"range of input length should be",
    r"\bexceed(?:s|ed)? (?:the )?model(?:'?s)? (?:token|input) limit",
    r"input tokens? exceeds? (?:the )?configured limit",
    r"too many (?:input|prompt) tokens",
    r"max prompt tokens exceeded",
    r"too large for model with \d",
    r"inputs? tokens \+ max new tokens must be <=",
    r"\binputs must have less than \d{1,12} tokens",
    rf"longer than the {_MAXIMUM} model len",
    r"tokens to keep from the initial prompt",
    r"tokens in request more than max tokens allowed",
    r"tokens limit reached",
    r"request body too large for .{1,60} model\. max size: \d{1,12} tokens",
    # vLLM states the negative room that is left for the reply. A client's own -1 means no limit.
    r"max (?:completion |new )?tokens must be at least [01], got -(?!1\b)\d",
    r"prompt 超长",
    r"(?:超过|超出).{0,20}上下文",
)
# The client requested a longer reply than the model supports.
OUTPUT_ONLY = _any_of(
    r"max (?:completion |output |new )?tokens\b.{0,60}(?:too large|at most|above|(?:must|should) be|limited)",
    r"maximum (?:allowed )?number of output tokens",
    r"at most \d{1,12} (?:completion|output) tokens",
    r"(?:valid )?range of max tokens",
    r"maximum tokens you requested",
    r"(?:max|completion|output|new) tokens\b.{0,40}\bexceed",
)
# Phrases that are usually about the window, unless the status has another meaning.
LIKELY_WINDOW = _any_of(
    r"\b(?:reduce|shorten) (?:the length of )?(?:the|your) (?:messages|prompt|input|context|conversation)\b",
    r"\btoo many tokens\b",
    r"\btoken limit (?:was |has been )?(?:exceeded|reached)",
    r"\bexceed(?:s|ed)? (?:the )?(?:maximum )?token limit",
    r"\b(?:input|prompt|requested|total|number of) tokens?\b.{0,30}\bexceeds? (?:the )?(?:limit|max)",
    rf"\bexceed(?:s|ed)? {_MAXIMUM} (?:token|sequence|input|prompt) (?:length|limit)",
    r"\b4(?:00|13) status code \(no body\)",
)
IMAGES = _any_of(
    r"\btoo many images\b",
    r"\bat most \d{1,6} images?\b",
    r"\bup to \d{1,6} images\b",
    r"\bfewer than \d{1,6} images\b",
    r"\b(?:allowed|maximum) number of images\b",
    # Anthropic limits the size of each image in requests with more than 20 images.
    r"\bmany image requests\b",
)
BYTES = _any_of(
    r"entity ?too ?large",
    r"\b(?:payload|content|body) ?(?:is )?too ?large",
    r"\brequest (?:is )?too large",
    rf"\brequest exceeds (?:the )?{_MAXIMUM} (?:allowed )?(?:size|number of bytes)",
    r"\b(?:request|body|payload)(?: (?:body|payload|content))? size (?:limit )?(?:\d{1,12} )?(?:has )?exceed",
    rf"\b{_MAXIMUM} (?:request )?(?:body|payload) size",
    r"\btoo many total text bytes",
    r"\brequest body: length limit exceeded",
)
_SLOT = re.compile(r"<(\w+)>")
_NUMBER = r"\d{1,12}(?:\.\d{1,6})?(?: ?[km]\b)?"


def _forms(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(
        re.compile(_SLOT.sub(lambda slot: f"(?P<{slot[1]}>{_NUMBER})", pattern)) for pattern in patterns
    )


_SEPARATOR = r"(?: (?:for|of) (?:this|the) model)?(?: (?:is|of|only|limit|to))*(?: ?[:=])? ?\(?"
# The limits are context (prompt and reply together) and input (the prompt alone). The counted numbers are
# total, prompt and output, and about for a rough number or a lower bound.
TOKEN_FORMS = _forms(
    r"context limit: <prompt> \+ <output> > <context>",  # Anthropic
    rf"\bcontext ?(?:length|window|size|limit){_SEPARATOR}<context>",
    r"<context>(?: tokens?)? max(?:imum)? context\b",  # Mistral
    r"model token limit:? <context>",  # Moonshot
    r"inputs? tokens \+ max new tokens must be <= <context>",  # Text Generation Inference
    r"max(?:imum)? model len(?:gth)?(?: (?:of|is))?(?: ?[:=])? ?\(?<context>",  # vLLM
    r"too long and exceeds limit of <context>",  # vLLM
    r"\bn ctx(?: ?[:=])? ?<context>",  # llama.cpp, as a field
    r"prompt is too long: <prompt> tokens > <context> max",  # Anthropic
    r"max(?:imum)? number of (?:input )?tokens(?: allowed)?(?: is)? ?[(:]?<input>",  # Google
    r"input token count is <prompt> but (?:the )?model only supports up to <input>",  # Vertex
    r"max(?:imum)? (?:allowed )?(?:prompt|input) (?:length|tokens)(?: (?:of|is))?(?: ?[:=])? ?\(?<input>",
    r"range of input length should be \[ ?\d{1,6} ?, ?<input> ?\]",  # Alibaba
    r"token count (?:of )?<prompt> (?:exceeds the limit of|cannot exceed) <input>",  # Copilot
    r"input tokens, limit is <input>",  # Vercel
    r"configured limit of <input>",  # OpenAI, GPT-5
    r"inputs must have less than <input> tokens",  # Text Generation Inference
    r"cannot exceed <input>(?: tokens)? - received <prompt>",  # Cohere
    r"limit for this model is <input> tokens",  # Cohere
    r"exceeds (?:the )?max(?:imum)? (?:allowed )?length(?: of)? ?\(?<input>",  # SGLang, Volcano Engine
    r"max size: <input> tokens",  # GitHub Models
    r"requested (?:a total of )?<total> tokens",
    r"requested (?:about|approximately|around|~) ?<about> tokens",
    r"total of at least <about> tokens",
    r"total of <total> tokens",
    r"\(requested:? <total>\)",
    r"requested tokens \(<total>\)",  # llama-cpp-python
    r"maximum output tokens \(<total>\)",  # Cloudflare
    r"resulted in <prompt> tokens",
    r"<prompt> in (?:your|the) prompt",
    r"\(<prompt> input \+ <output> output\)",
    r"(?:request|prompt) (?:contains|has) <prompt> (?:input )?tokens",
    r"prompt contains at least <about> (?:input )?tokens",
    r"(?:input|prompt|request) \((?:length )?<prompt>(?: tokens)?\)",
    r"input (?:length|token count)(?: is|:)? \(?<prompt>(?: tokens)?\)?(?: exceeds|[.,;\n]|$)",
    r"(?:prompt|input) (?:is )?too long: <prompt>",
    r"given: <prompt>(?: inputs? tokens and <output> max new tokens)?",
    r"\bn prompt tokens(?: ?[:=])? ?<prompt>",
    r"<prompt> tokens from the input messages",
    r"<output> (?:tokens )?(?:in|for) the completion",
    r"requested <output> output tokens",
    r"max (?:completion )?tokens is too large: <output>",
)
IMAGE_FORMS = _forms(
    r"at most <images> image",
    r"up to <images> image",
    r"too many images.{0,60}> ?<images>",
    r"images.{0,60}max(?:imum)?(?: (?:is|of|allowed))*:? ?<images>\b(?! ?(?:px|pixels|[km]i?b|bytes))",
    r"max(?:imum)?(?: number)?(?: of)? images(?: allowed)?(?: is)?:? ?<images>",
)
FEWER_IMAGES = re.compile(r"fewer than (\d{1,6}) images")
_SIZE = r"(?P<size>\d{1,14}(?:\.\d{1,6})?) ?(?P<unit>[kmg]i?b|bytes?)?\b"
BYTE_FORMS = tuple(
    re.compile(pattern + _SIZE)
    for pattern in (
        r"\b(?:max|maximum|limit|at most|up to)\b[^\d.]{0,60}",
        r"\b(?:exceeds|exceeded|than)\b[^\d.]{0,60}",
    )
)


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
_MARK = re.compile("['\"`“”‘’]")
_CLOSING = {"“": "”", "‘": "’"}
# A quotation begins after one of these and before a letter, a digit or a bracket, so that it begins neither
# inside a word ("model's") nor after the last word of a sentence.
_BEFORE_OPENING = frozenset(" \t\n(=:[{,>-")
_NEVER_AFTER_OPENING = frozenset(" \t\n,.;:)}]'\"`")
# The values of these keys are the upstream's own words.
_OWN_WORDS = re.compile(
    r"(?:message|msg|detail|error|code|type|reason|raw|title)['\"]?\s*[:=]\s*$", re.IGNORECASE
)
_LOOK_BACK = 24
# The name of a parameter. A code about overflow is removed, because the user may have sent it.
_IDENTIFIER = re.compile(r"(?!.*(?:exceed|overflow))[\w.\[\]-]{1,40}", re.IGNORECASE)
# Smaller or larger numbers are codes, years or mistakes.
_SMALLEST_LIMIT_TOKENS = 256
_LARGEST_LIMIT_TOKENS = 100_000_000
_SMALLEST_LIMIT_BYTES = 1_024
_LARGEST_LIMIT_BYTES = 100_000_000_000
_MAX_IMAGES = 100_000
# "128k" may mean 128,000 or 131,072; the smaller one is safe.
_FACTORS = {"k": 1_000, "m": 1_000_000}
_BYTES = {"kb": 1_000, "kib": 1_024, "mb": 1_000_000, "mib": 1_048_576, "gb": 10**9, "gib": 2**30}
# A smaller number without a unit is more likely a code.
_MIN_PLAIN_BYTES = 65_536

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
    if VETO.search(text):
        return None
    if WINDOW.search(text):
        return parse_token_numbers(text)
    return _parse_likely(text) if statuses <= _PLAUSIBLE else None


def _parse_likely(text: str) -> Overflow | None:
    if IMAGES.search(text):
        images = parse_image_limit(text)
        # A model that accepts no images would refuse the smaller request, too.
        return Overflow(kind="images", images=images) if images != 0 else None
    if BYTES.search(text):
        return Overflow(kind="bytes", bytes=parse_byte_limit(text))
    if LIKELY_WINDOW.search(text) and not OUTPUT_ONLY.search(text):
        return parse_token_numbers(text)
    return None


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
    return _THOUSANDS.sub(lambda found: found[0].replace(",", ""), _IDENTIFIER_GAP.sub(" ", plain))


def _bounded(text: str) -> str:
    """Beginning and end of a long text; a number at the cut is removed, because it may be incomplete."""
    if len(text) <= 2 * _READ_CHARACTERS:
        return text
    beginning, end = text[:_READ_CHARACTERS].rstrip(_CUT_NUMBER), text[-_READ_CHARACTERS:].lstrip(_CUT_NUMBER)
    return f"{beginning} … {end}"


def without_quotations(text: str) -> str:
    """The text with a space for each quotation, so that a user's words are not taken for the upstream's. One
    that is not closed extends to the end of the text.

    An identifier in quotes stays (`max_tokens`), and so does the text after a key such as `"message":`,
    because many gateways wrap the whole error of another one in their own message.
    """
    kept: list[str] = []
    # The start of the text to keep, or of the open quotation.
    begun = 0
    mark, depth = "", 0
    for match in _MARK.finditer(text):
        place = match.start()
        if depth:
            depth += _step(text, place, mark)
            if not depth:
                quoted = text[begun : place + 1]
                kept.append(quoted if _IDENTIFIER.fullmatch(quoted[1:-1]) else " ")
                begun = place + 1
        elif _is_opening(text, place) and not _is_own(text, place):
            kept.append(text[begun:place])
            mark, depth, begun = text[place], 1, place
    kept.append(" " if depth else text[begun:])
    return "".join(kept)


def _step(text: str, place: int, mark: str) -> int:
    """The change of depth: quotations with the same mark may be nested."""
    if text[place] == mark and _is_opening(text, place):
        return 1
    behind = text[place + 1 : place + 2]
    return -1 if text[place] == _CLOSING.get(mark, mark) and not behind.isalnum() else 0


def _is_opening(text: str, place: int) -> bool:
    before, behind = text[place - 1 : place], text[place + 1 : place + 2]
    return before in _BEFORE_OPENING and behind != "" and behind not in _NEVER_AFTER_OPENING


def _is_own(text: str, place: int) -> bool:
    """Whether it is a nested object, or the value of a key for the upstream's own words."""
    if text[place + 1] in "{[":
        return True
    return _OWN_WORDS.search(text[max(0, place - _LOOK_BACK) : place]) is not None


def parse_token_numbers(text: str) -> Overflow:
    """Without numbers if they contradict each other: a limit above the size that did not fit."""
    slots = _find_slots(TOKEN_FORMS, text)
    total, output, about = slots.get("total"), slots.get("output"), slots.get("about")
    prompt = slots.get("prompt")
    if prompt is None and total is not None and output is not None and output < total:
        prompt = total - output
    size = total or about or (prompt + (output or 0) if prompt is not None else None)
    context, limit = _plausible_limit(slots.get("context")), _plausible_limit(slots.get("input"))
    if size is not None and max(context or 0, limit or 0) > size:
        return Overflow()
    return Overflow(context=context, input=limit, used=total or about or prompt, prompt_tokens=prompt)


def parse_image_limit(text: str) -> int | None:
    fewer = FEWER_IMAGES.search(text)
    most = int(fewer[1]) - 1 if fewer else _find_slots(IMAGE_FORMS, text).get("images")
    return most if most is not None and 0 <= most <= _MAX_IMAGES else None


def parse_byte_limit(text: str) -> int | None:
    for form in BYTE_FORMS:
        for match in form.finditer(text):
            if limit := _plausible_bytes(match["size"], match["unit"] or ""):
                return limit
    return None


def _find_slots(forms: tuple[re.Pattern[str], ...], text: str) -> dict[str, int]:
    """The number for each slot, from the first form that has it."""
    slots: dict[str, int] = {}
    for match in filter(None, (form.search(text) for form in forms)):
        found = {
            slot: int(float(number.rstrip(" km")) * _FACTORS.get(number[-1], 1))
            for slot, number in match.groupdict().items()
            if number
        }
        slots = {slot: number for slot, number in found.items() if number <= LARGEST_COUNT} | slots
    return slots


def _plausible_limit(tokens: int | None) -> int | None:
    is_plausible = tokens is not None and _SMALLEST_LIMIT_TOKENS <= tokens <= _LARGEST_LIMIT_TOKENS
    return tokens if is_plausible else None


def _plausible_bytes(size: str, unit: str) -> int | None:
    limit = int(float(size) * _BYTES.get(unit, 1))
    smallest = _SMALLEST_LIMIT_BYTES if unit else _MIN_PLAIN_BYTES
    return limit if smallest <= limit <= _LARGEST_LIMIT_BYTES else None
