"""Phrases with which upstreams say that a request is too large, and phrases with another meaning.

They match the plain text that `overflow` makes: lower case, without quote marks, with spaces for underscores
and for hyphens between letters, so that a code (`context_length_exceeded`) and a sentence look alike. Every
gap in a pattern is bounded, so that the time is linear in the length of any text.
"""

import re


def _any_of(*phrases: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{phrase})" for phrase in phrases))


# Errors that waiting, paying or logging in would resolve, but not a smaller request. OpenAI uses
# `string_above_max_length` for a single field, such as `user`.
_VETO = _any_of(
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
# Unambiguous phrases, which are valid with almost every status (see `overflow`).
_WINDOW = _any_of(
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
_OUTPUT_ONLY = _any_of(
    r"max (?:completion |output |new )?tokens\b.{0,60}(?:too large|at most|above|(?:must|should) be|limited)",
    r"maximum (?:allowed )?number of output tokens",
    r"at most \d{1,12} (?:completion|output) tokens",
    r"(?:valid )?range of max tokens",
    r"maximum tokens you requested",
    r"(?:max|completion|output|new) tokens\b.{0,40}\bexceed",
)
# Phrases that are usually about the window, unless the status has another meaning.
_LIKELY_WINDOW = _any_of(
    r"\b(?:reduce|shorten) (?:the length of )?(?:the|your) (?:messages|prompt|input|context|conversation)\b",
    r"\btoo many tokens\b",
    r"\btoken limit (?:was |has been )?(?:exceeded|reached)",
    r"\bexceed(?:s|ed)? (?:the )?(?:maximum )?token limit",
    r"\b(?:input|prompt|requested|total|number of) tokens?\b.{0,30}\bexceeds? (?:the )?(?:limit|max)",
    rf"\bexceed(?:s|ed)? {_MAXIMUM} (?:token|sequence|input|prompt) (?:length|limit)",
    r"\b4(?:00|13) status code \(no body\)",
)
_IMAGES = _any_of(
    r"\btoo many images\b",
    r"\bat most \d{1,6} images?\b",
    r"\bup to \d{1,6} images\b",
    r"\bfewer than \d{1,6} images\b",
    r"\b(?:allowed|maximum) number of images\b",
    # Anthropic limits the size of each image in requests with more than 20 images.
    r"\bmany image requests\b",
)
_BYTES = _any_of(
    r"entity ?too ?large",
    r"\b(?:payload|content|body) ?(?:is )?too ?large",
    r"\brequest (?:is )?too large",
    rf"\brequest exceeds (?:the )?{_MAXIMUM} (?:allowed )?(?:size|number of bytes)",
    r"\b(?:request|body|payload)(?: (?:body|payload|content))? size (?:limit )?(?:\d{1,12} )?(?:has )?exceed",
    rf"\b{_MAXIMUM} (?:request )?(?:body|payload) size",
    r"\btoo many total text bytes",
    r"\brequest body: length limit exceeded",
)


def is_vetoed(text: str) -> bool:
    return _VETO.search(text) is not None


def is_window(text: str) -> bool:
    """Whether the text is unambiguously about the window."""
    return _WINDOW.search(text) is not None


def is_likely_window(text: str) -> bool:
    return _LIKELY_WINDOW.search(text) is not None


def is_output_only(text: str) -> bool:
    return _OUTPUT_ONLY.search(text) is not None


def is_images(text: str) -> bool:
    return _IMAGES.search(text) is not None


def is_bytes(text: str) -> bool:
    return _BYTES.search(text) is not None
