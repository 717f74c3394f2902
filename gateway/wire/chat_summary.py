"""Chat Completions: the request that asks for a summary.

No tools, no tool choice, no response format, no stop, no reasoning effort: one system prompt, one user
message that holds the history as data and ends with the instruction (DESIGN §6).
"""

import msgspec

from gateway.wire.summary_request import THINKING_ALLOWANCE_TOKENS, SummaryRequest


def render_summary_request(request: SummaryRequest) -> bytes:
    allowance = THINKING_ALLOWANCE_TOKENS if request.output_key == "max_completion_tokens" else 0
    # Anthropic back ends refuse an empty text; document 003 has no system prompt.
    system = [{"role": "system", "content": request.system}] if request.system.strip() else []
    return msgspec.json.encode(
        {
            "model": request.model,
            "messages": [*system, {"role": "user", "content": "\n\n".join(request.parts)}],
            request.output_key: max(request.cap, min(request.cap + allowance, request.room)),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
