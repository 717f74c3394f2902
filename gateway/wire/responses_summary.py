"""Responses: the request that asks for a summary.

No tools, no tool choice, no text format, no reasoning effort, nothing kept: instructions, and one user
message that holds the history as data and ends with what is wanted (DESIGN §6).
"""

import msgspec

from gateway.wire.summary_request import THINKING_ALLOWANCE_TOKENS, SummaryRequest


def render_summary_request(request: SummaryRequest) -> bytes:
    # Half of what seems left: the prompt was estimated.
    allowance = max(0, min(THINKING_ALLOWANCE_TOKENS, (request.room - request.cap) // 2))
    instructions = {"instructions": request.system} if request.system.strip() else {}
    content = [{"type": "input_text", "text": "\n\n".join(request.parts)}]
    return msgspec.json.encode(
        {
            "model": request.model,
            **instructions,
            "input": [{"type": "message", "role": "user", "content": content}],
            request.output_key: request.cap + allowance,
            "store": False,
            "stream": True,
        }
    )
