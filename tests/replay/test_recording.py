"""Values of recordings."""

from gateway.replay.recording import CHAT_PATH, MESSAGES_PATH, RESPONSES_PATH, RecordedRequest
from gateway.wire.formats.registry import find_format


def test_each_path_belongs_to_a_format() -> None:
    found = [find_format(path) for path in (CHAT_PATH, MESSAGES_PATH, RESPONSES_PATH)]
    assert [each.name for each in found if each is not None] == ["chat", "messages", "responses"]


def test_a_request_has_neither_usage_nor_reply_unless_they_were_recorded() -> None:
    request = RecordedRequest(path=CHAT_PATH, body=b"{}")
    assert (request.usage, request.reply, request.has_failed) == (None, (), False)
