"""OpenAI's Chat Completions, which most providers and clients use."""

from typing import Final

from gateway.wire import errors
from gateway.wire.formats.chat import render, reply, request, riding, text
from gateway.wire.wire_format import WireFormat

CHAT: Final = WireFormat(
    name="chat",
    path="/v1/chat/completions",
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
    keepalive=b": keep-alive\n\n",
    render_error=errors.render_error,
    render_stream_error=errors.render_stream_error,
    render_local_response=render.render_local_response,
)
