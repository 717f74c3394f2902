"""The numbers in an upstream's error: the size of its window, and the tokens that it counted.

Works on the plain text that `overflow` makes: lower case, without quote marks, with spaces for underscores.
Every gap in a pattern is bounded, so that the time is linear in the length of any text.
"""

import re
from dataclasses import dataclass

from gateway.core.counts import LARGEST_COUNT

# Smaller or larger numbers are codes, years or mistakes.
_SMALLEST_LIMIT_TOKENS = 256
_LARGEST_LIMIT_TOKENS = 100_000_000
_SMALLEST_LIMIT_BYTES = 1_024
_LARGEST_LIMIT_BYTES = 100_000_000_000
_MAX_IMAGES = 100_000
_SLOT = re.compile(r"<(\w+)>")
_NUMBER = r"\d{1,12}(?:\.\d{1,6})?(?: ?[km]\b)?"
# "128k" may mean 128,000 or 131,072; the smaller one is safe.
_FACTORS = {"k": 1_000, "m": 1_000_000}
_BYTES = {"kb": 1_000, "kib": 1_024, "mb": 1_000_000, "mib": 1_048_576, "gb": 10**9, "gib": 2**30}


def _forms(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(
        re.compile(_SLOT.sub(lambda slot: f"(?P<{slot[1]}>{_NUMBER})", pattern)) for pattern in patterns
    )


_SEPARATOR = r"(?: (?:for|of) (?:this|the) model)?(?: (?:is|of|only|limit|to))*(?: ?[:=])? ?\(?"
# The limits are context (prompt and reply together) and input (the prompt alone). The counted numbers are
# total, prompt and output, and about for a rough number or a lower bound.
_TOKEN_FORMS = _forms(
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
_IMAGE_FORMS = _forms(
    r"at most <images> image",
    r"up to <images> image",
    r"too many images.{0,60}> ?<images>",
    r"images.{0,60}max(?:imum)?(?: (?:is|of|allowed))*:? ?<images>\b(?! ?(?:px|pixels|[km]i?b|bytes))",
    r"max(?:imum)?(?: number)?(?: of)? images(?: allowed)?(?: is)?:? ?<images>",
)
_FEWER_IMAGES = re.compile(r"fewer than (\d{1,6}) images")
_SIZE = r"(?P<size>\d{1,14}(?:\.\d{1,6})?) ?(?P<unit>[kmg]i?b|bytes?)?\b"
_BYTE_FORMS = tuple(
    re.compile(pattern + _SIZE)
    for pattern in (
        r"\b(?:max|maximum|limit|at most|up to)\b[^\d.]{0,60}",
        r"\b(?:exceeds|exceeded|than)\b[^\d.]{0,60}",
    )
)
# A smaller number without a unit is more likely a code.
_MIN_PLAIN_BYTES = 65_536


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenNumbers:
    """Tokens; None if not stated."""

    context: int | None = None
    input: int | None = None
    # The requested total if it is stated, else the prompt.
    used: int | None = None
    prompt: int | None = None


def parse_token_numbers(text: str) -> TokenNumbers:
    """Without numbers if they contradict each other: a limit above the size that did not fit."""
    slots = _find_slots(_TOKEN_FORMS, text)
    total, output, about = slots.get("total"), slots.get("output"), slots.get("about")
    prompt = slots.get("prompt")
    if prompt is None and total is not None and output is not None and output < total:
        prompt = total - output
    size = total or about or (prompt + (output or 0) if prompt is not None else None)
    context, limit = _plausible_limit(slots.get("context")), _plausible_limit(slots.get("input"))
    if size is not None and max(context or 0, limit or 0) > size:
        return TokenNumbers()
    return TokenNumbers(context=context, input=limit, used=total or about or prompt, prompt=prompt)


def parse_image_limit(text: str) -> int | None:
    fewer = _FEWER_IMAGES.search(text)
    most = int(fewer[1]) - 1 if fewer else _find_slots(_IMAGE_FORMS, text).get("images")
    return most if most is not None and 0 <= most <= _MAX_IMAGES else None


def parse_byte_limit(text: str) -> int | None:
    for form in _BYTE_FORMS:
        for match in form.finditer(text):
            if limit := _plausible_bytes(match["size"], match["unit"] or ""):
                return limit
    return None


def _find_slots(forms: tuple[re.Pattern[str], ...], text: str) -> dict[str, int]:
    """The number for each slot, from the first form that has it."""
    slots: dict[str, int] = {}
    for match in filter(None, (form.search(text) for form in forms)):
        found = {slot: _parse_number(number) for slot, number in match.groupdict().items() if number}
        slots = {slot: number for slot, number in found.items() if number <= LARGEST_COUNT} | slots
    return slots


def _parse_number(number: str) -> int:
    return int(float(number.rstrip(" km")) * _FACTORS.get(number[-1], 1))


def _plausible_limit(tokens: int | None) -> int | None:
    is_plausible = tokens is not None and _SMALLEST_LIMIT_TOKENS <= tokens <= _LARGEST_LIMIT_TOKENS
    return tokens if is_plausible else None


def _plausible_bytes(size: str, unit: str) -> int | None:
    limit = int(float(size) * _BYTES.get(unit, 1))
    smallest = _SMALLEST_LIMIT_BYTES if unit else _MIN_PLAIN_BYTES
    return limit if smallest <= limit <= _LARGEST_LIMIT_BYTES else None
