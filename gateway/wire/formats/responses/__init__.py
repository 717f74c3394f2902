"""OpenAI's Responses."""

from typing import Final

from gateway.wire import errors
from gateway.wire.formats.responses import history, render, reply, request, riding, text
from gateway.wire.wire_format import WireFormat

RESPONSES: Final = WireFormat(
    name="responses",
    path="/v1/responses",
    parse_body=request.parse_body,
    parse_message=request.parse_message,
    parse_entry=text.parse_entry,
    split_results=text.split_results,
    render_marked=render.render_marked,
    write_turns=render.write_turns,
    output_key="max_output_tokens",
    render_summary_request=render.render_summary_request,
    find_reply_part=reply.find_reply_part,
    ride=riding.ride,
    # Codex counts only events with data: an SSE comment would not keep it waiting.
    keepalive=b'event: keepalive\ndata: {"type":"keepalive"}\n\n',
    render_error=errors.render_error,
    render_stream_error=render.render_stream_error,
    render_local_response=render.render_local_response,
    stored_history=history.STORED_HISTORY,
)
