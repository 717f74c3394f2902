"""Chat Completions: a summary that rides on the conversation's own request."""

from typing import Final

from gateway.wire.riding import RidingRequest, read_ridden, ride_or_none, spare_tokens

# With one of these the reply is something else than one free text, or ends where a summary does not.
_IN_THE_WAY: Final = (
    *("functions", "function_call", "audio", "prediction", "stop"),
    # Searches for each request: OpenAI, OpenRouter, xAI, Qwen.
    *("web_search_options", "plugins", "search_parameters", "enable_search"),
    # The upstream drops the middle of the history (OpenRouter), or goes on with the last message (vLLM).
    *("transforms", "continue_final_message"),
    # Output by a grammar, at vLLM, SGLang and llama.cpp.
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
    *("regex", "ebnf", "grammar", "json_schema"),
)
# OpenRouter.
_SEARCHING_MODEL: Final = ":online"
_LIMITS: Final = ("max_completion_tokens", "max_tokens")
# Another `tool_choice` would make a cache with marks useless (docs/economics.md): that of Anthropic's models
# behind OpenRouter, LiteLLM and others.
_CACHE_MARK: Final = b'"cache_control"'


@ride_or_none
def ride(data: bytes, request: RidingRequest) -> bytes | None:
    """Not for several choices, structured output, speech, or a reply that was begun already."""
    body = read_ridden(data, "messages")
    if body is None or body.parse("n") not in (None, 1) or body.has(*_IN_THE_WAY):
        return None
    if body.parse("add_generation_prompt") is False or str(body.parse("model")).endswith(_SEARCHING_MODEL):
        return None
    is_kept = body.parse("store") is True
    if is_kept and body.has("metadata"):
        # Metadata is refused beside a response that is not stored.
        return None
    if not _is_text(body.parse("response_format")) or body.parse("modalities") not in (None, ["text"]):
        return None
    if _CACHE_MARK in data and body.parse("tool_choice") not in (None, "auto", "none"):
        return None
    last = body.parse_last()
    if not isinstance(last, dict) or last.get("role") == "assistant":
        return None
    # Models that take this name for the limit count their thinking, too.
    thinking = spare_tokens(request) if body.parse("max_completion_tokens") is not None else 0
    if not body.limit_reply(_LIMITS, request.cap_tokens + thinking, request.room_tokens):
        return None
    body.append({"role": "user", "content": request.message})
    if body.has("tools") and _CACHE_MARK not in data:
        body.set("tool_choice", "none")
    if is_kept:
        body.set("store", False)
    return body.render()


def _is_text(response_format: object) -> bool:
    return response_format is None or (
        isinstance(response_format, dict) and response_format.get("type") == "text"
    )
