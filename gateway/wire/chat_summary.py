"""Chat Completions: the request that asks for a summary.

No tools, no tool choice, no response format, no stop, no reasoning effort: one system prompt, one user
message that holds the history as data and ends with the instruction (DESIGN §6).
"""

from dataclasses import dataclass

import msgspec

from gateway.wire.chat import Envelope

# Reasoning models count their thinking against this field: room beyond the summary itself.
_THINKING_ALLOWANCE_TOKENS = 8_192


@dataclass(frozen=True, kw_only=True, slots=True)
class SummaryRequest:
    """system: may be empty. parts: what the user message says, the instruction last.

    cap, room: tokens of reply wanted and possible.
    """

    model: str
    system: str
    parts: tuple[str, ...]
    output_key: str
    cap: int
    room: int


def output_key(envelope: Envelope) -> str:
    """The name under which this model takes its reply's limit: the one the client uses."""
    return envelope.requested_key or "max_tokens"


def render_summary_request(request: SummaryRequest) -> bytes:
    allowance = _THINKING_ALLOWANCE_TOKENS if request.output_key == "max_completion_tokens" else 0
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
