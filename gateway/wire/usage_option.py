"""Asks for usage in a stream whose client did not. Only Chat Completions has to be asked."""

from typing import Final

import msgspec

from gateway.wire.request import RequestBody
from gateway.wire.splice import Edit

_INCLUDE_USAGE: Final = b'{"include_usage":true}'


def make_usage_edit(body: RequestBody) -> Edit:
    """Asks for usage in a stream, whatever the options were before."""
    place = body.envelope.stream_options
    if place is None:
        end = body.data.rindex(b"}")
        return Edit(end, end, b',"stream_options":' + _INCLUDE_USAGE)
    start, end = body.absolute(place.start), body.absolute(place.end)
    return Edit(start, end, _with_usage(body.data[start:end]))


def _with_usage(options: bytes) -> bytes:
    """The options with `include_usage` on, every other byte where it was; whatever is no object is
    replaced.
    """
    try:
        fields = msgspec.json.decode(options, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _INCLUDE_USAGE
    if "include_usage" in fields:
        # It said no: the one field is written anew, with the raw bytes of the others.
        return msgspec.json.encode({**fields, "include_usage": True})
    return _INCLUDE_USAGE[:-1] + (b"," if fields else b"") + options.lstrip()[1:]
