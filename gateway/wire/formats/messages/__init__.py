"""Anthropic's Messages."""

from typing import Final

from gateway.wire.formats.messages import render, reply, request, riding, text, thread
from gateway.wire.wire_format import WireFormat

MESSAGES: Final = WireFormat(
    name="messages",
    path="/v1/messages",
    parse_body=request.parse_body,
    parse_message=request.parse_message,
    parse_entry=text.parse_entry,
    split_results=text.split_results,
    render_marked=render.render_marked,
    write_turns=render.write_turns,
    output_key="max_tokens",
    render_summary_request=render.render_summary_request,
    find_reply_part=reply.find_reply_part,
    ride=riding.ride,
    keepalive=b'event: ping\ndata: {"type": "ping"}\n\n',
    render_error=render.render_error,
    render_stream_error=render.render_stream_error,
    render_local_response=render.render_local_response,
    stored_history=thread.STORED_HISTORY,
    headers=(("anthropic-version", "2023-06-01"),),
)
