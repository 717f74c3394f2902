"""Chat Completions: one reply for the client, made of as many responses as the model took for it."""

from gateway.core.history.recall import ReplyMark, make_reply_mark
from gateway.wire.formats.chat.shown_stream import ShownStream
from gateway.wire.formats.chat.streamed_response import StreamedResponse
from gateway.wire.formats.chat.whole_response import WholeResponse
from gateway.wire.raw_json import join_halves
from gateway.wire.recall import RecallRequest
from gateway.wire.response.stitcher_choice import is_only_blank, is_whole


class ChatStitcher:
    """The bytes decide whether a response is streamed, not what the client asked for."""

    def __init__(self) -> None:
        self._shown = ShownStream()
        # Of responses before this one.
        self._texts: list[str] = []
        self._call_ids: list[str] = []
        # Of this one, until its first byte that is no blank.
        self._start = bytearray()
        # All of a response that holds nothing else.
        self._blanks = b""
        self._response: StreamedResponse | WholeResponse | None = None
        self._has_ended = False

    def feed(self, piece: bytes) -> bytes:
        left = self._leave() if self._has_ended else b""
        if self._response is not None:
            return left + self._response.feed(piece)
        self._start += piece
        if is_only_blank(piece, len(self._start)):
            return left
        response = self._begin()
        return left + response.feed(bytes(self._start))

    def end(self) -> RecallRequest | None:
        self._has_ended = True
        return self._open().end()

    def finish(self) -> bytes:
        if not self._has_ended:
            self.end()
        response = self._open()
        return self._blanks + response.release()

    @property
    def has_shown(self) -> bool:
        response = self._response
        return self._shown.has_content or (isinstance(response, WholeResponse) and response.is_passing)

    @property
    def reply(self) -> ReplyMark:
        response = self._response
        ids, texts = (response.call_ids, [response.text]) if response is not None else ([], [])
        return make_reply_mark([*self._call_ids, *ids], [join_halves("".join([*self._texts, *texts]))])

    def _begin(self) -> StreamedResponse | WholeResponse:
        self._response = WholeResponse() if is_whole(self._start) else StreamedResponse(self._shown)
        return self._response

    def _open(self) -> StreamedResponse | WholeResponse:
        """The response, also if it is only blank."""
        if self._response is None:
            response = self._begin()
            self._blanks = response.feed(bytes(self._start))
            return response
        return self._response

    def _leave(self) -> bytes:
        response = self._open()
        left = response.leave()
        self._texts.append(response.text)
        self._call_ids += response.call_ids
        self._response = None
        self._start.clear()
        self._blanks = b""
        self._has_ended = False
        return left
