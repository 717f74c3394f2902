"""Phrases with which upstreams say that a request is too large, and by how much, and phrases with another
meaning.

They match the plain text that `overflow` makes: lower case, without quote marks, with spaces for underscores
and for hyphens between letters, so that a code (`context_length_exceeded`) and a sentence look alike. Every
gap in a pattern is bounded, so that the time is linear in the length of any text.
"""

import re


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
# Unambiguous phrases, which are valid with almost every status (see `overflow`).
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
