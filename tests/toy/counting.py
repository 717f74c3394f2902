"""The toy upstream's own tokenizer: plausible, deterministic, and different from the gateway's.

Costs follow how byte-pair vocabularies cut text (words with their leading space, digits by three, runs of
punctuation, indentation). A `bias` scales all counts.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

_PIECE = re.compile(
    r"(?P<word>[A-Z]?[a-z]+|[A-Z]+(?![a-z]))"
    r"|(?P<digits>[0-9]{1,3})"
    r"|(?P<cjk>[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]+)"
    r"|(?P<line>[ \t]*[\r\n]\s*)"
    r"|(?P<space>[ \t]+)"
    r"|(?P<letters>[^\W\d_]+)"
    r"|(?P<marks>(?:[^\w\s]|_)+)"
    r"|(?P<other>.)",
    re.DOTALL,
)
# Tokens per character of CJK text: o200k needs 0.6-0.8.
_CJK_TOKENS = 0.72
_LETTER_TOKENS = 0.55
# Around a message, a result or a system prompt; at the end of every prompt.
MESSAGE_TOKENS = 4
PRIMING_TOKENS = 3
_IMAGE_TOKENS = 765
_WORD_TOKENS = (0.0, 0.75, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5)


def _word_tokens(length: int) -> float:
    if length < len(_WORD_TOKENS):
        return _WORD_TOKENS[length]
    return 1.5 + (length - 11) * 0.25


def _space_tokens(length: int) -> float:
    """One space belongs to the word behind it; a longer run is one token per 16 characters."""
    return 0.0 if length == 1 else float(math.ceil(length / 16))


def _piece_tokens(kind: str, length: int) -> float:
    """Cost of one piece of the pattern, in tokens."""
    match kind:
        case "word":
            return _word_tokens(length)
        case "digits":
            return 1.0
        case "cjk":
            return _CJK_TOKENS * length
        case "letters":
            return max(1.0, _LETTER_TOKENS * length)
        case "line":
            return 1.0 + length // 32
        case "space":
            return _space_tokens(length)
        case "marks":
            return 0.9 if length <= 2 else 0.9 + min((length - 2) * 0.3, 1.0 + length / 16)
        case _:
            return 1.5


@lru_cache(maxsize=40_000)
def count_text(text: str) -> float:
    """Tokens of a text at bias 1.0, not rounded. Remembered per text: sessions resend their history."""
    pieces = _PIECE.finditer(text)
    return sum(_piece_tokens(piece.lastgroup or "other", piece.end() - piece.start()) for piece in pieces)


def render_compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _part_tokens(part: object) -> float:
    match part:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return count_text(text)
        case {"type": "image_url" | "input_image" | "image"}:
            return _IMAGE_TOKENS
        case _:
            return count_text(render_compact(part))


def count_content(content: object) -> float:
    """Tokens of a content in any of the formats: a text, parts, or None."""
    match content:
        case None:
            return 0.0
        case str():
            return count_text(content)
        case list():
            return sum(map(_part_tokens, content))
        case _:
            return count_text(render_compact(content))


def count_call(name: str, arguments: str) -> float:
    return 3 + count_text(name) + count_text(arguments)


def _call_tokens(call: object) -> float:
    match call:
        case {"function": {"name": str(name), "arguments": str(arguments)}}:
            return count_call(name, arguments)
        case _:
            return count_text(render_compact(call))


class TokenCounter:
    """Whole tokens at one bias; a prompt is exactly the sum of its parts, so sizes can be added up."""

    def __init__(self, bias: float = 1.0) -> None:
        self.bias = bias

    def scale(self, tokens: float) -> int:
        """The count that the upstream reports for this many tokens at bias 1.0."""
        return math.ceil(tokens * self.bias)

    def text(self, text: str) -> int:
        return self.scale(count_text(text))

    def message(self, message: Mapping[str, object]) -> int:
        calls = message.get("tool_calls")
        reasoning = message.get("reasoning_content")
        tokens = MESSAGE_TOKENS + count_content(message.get("content"))
        tokens += sum(map(_call_tokens, calls)) if isinstance(calls, list) else 0
        return self.scale(tokens + (count_content(reasoning) if isinstance(reasoning, str) else 0))

    def messages(self, messages: Sequence[Mapping[str, object]]) -> int:
        return sum(map(self.message, messages))

    def tools(self, tools: object) -> int:
        return self.scale(count_text(render_compact(tools))) if tools else 0

    def prompt(self, request: Mapping[str, object]) -> int:
        """Tokens of a whole chat request, as reported in its usage. Entries that are not messages count 0."""
        messages = request.get("messages")
        known = [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []
        return self.messages(known) + self.tools(request.get("tools")) + self.scale(PRIMING_TOKENS)

    def cut(self, text: str, limit_tokens: int) -> str:
        """The longest beginning of a text (to within 64 characters) that costs at most the limit."""
        low, high = 0, len(text)
        if self.text(text) <= limit_tokens:
            return text
        while high - low > 64:
            middle = (low + high) // 2
            low, high = (middle, high) if self.text(text[:middle]) <= limit_tokens else (low, middle)
        return text[:low]
