"""Anthropic Messages: the request that asks for a summary.

No tools, no thinking, no stop sequences: a system prompt and one user message that holds the history as data
and ends with the instruction (DESIGN §6). Where the client introduces itself, so do we (FACTS §2).
"""

import msgspec

from gateway.wire.summary_request import SummaryRequest


def render_summary_request(request: SummaryRequest) -> bytes:
    texts = [text for text in (*request.greeting, request.system) if text.strip()]
    system = {"system": [{"type": "text", "text": text} for text in texts]} if texts else {}
    return msgspec.json.encode(
        {
            "model": request.model,
            **system,
            "messages": [{"role": "user", "content": "\n\n".join(request.parts)}],
            request.output_key: request.cap,
            "stream": True,
        }
    )
