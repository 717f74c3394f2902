"""Which paths callers may use with an upstream's own key: values in, values out."""

import pytest
from pydantic import SecretStr

from gateway.settings import UpstreamSettings
from gateway.upstream.allow_list import find_stored_response, is_allowed, is_granted, may_name_responses
from tests.builders.upstream import make_upstream


def keyed(*allow: str) -> UpstreamSettings:
    return make_upstream(api_key=SecretStr("sk-own"), allow=allow)


OPEN = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/chat/completions?x=1"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/responses/input_tokens"),
    ("POST", "/v1/messages?beta=true"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/embeddings"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/meta-llama/Llama-3.1"),
    ("POST", "/v1/audio/transcriptions"),
    ("POST", "/v1/images/generations"),
    ("POST", "/v1/rerank"),
    ("POST", "/deployments/gpt/chat/completions?api-version=1"),
    ("HEAD", "/"),
    ("GET", "/"),
    ("HEAD", "/v1/models"),
    ("OPTIONS", "/v1/chat/completions"),
    ("GET", "/v1/responses/resp_1"),
    ("DELETE", "/v1/responses/resp_1"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("GET", "/v1/responses/resp_1/input_items?limit=1"),
]
CLOSED = [
    ("GET", "/v1/files"),
    ("POST", "/v1/files"),
    ("DELETE", "/v1/files/file-1"),
    ("GET", "/v1/files/file-1/content"),
    ("GET", "/v1/organization/admin_api_keys"),
    ("POST", "/v1/batches"),
    ("POST", "/v1/messages/batches"),
    ("GET", "/v1/chat/completions"),
    ("GET", "/v1/chat/completions/chatcmpl-1/messages"),
    ("DELETE", "/v1/models/ft:gpt"),
    ("GET", "/v1/responses"),
    ("GET", "/v1/conversations/conv_1"),
    ("POST", "/v1/conversations"),
    ("GET", "/v1/vector_stores"),
    ("GET", "/v1/fine_tuning/jobs"),
    ("GET", "/v1/assistants"),
    ("POST", "/v1/threads"),
    ("GET", "/v1/%66iles"),
    ("GET", "/v1//files"),
    ("GET", "/v1/models/..;/files"),
    ("GET", "/v1/models/%252e%252e%252ffiles"),
    ("GET", "/v1/models/..%5cfiles"),
    ("GET", "/v1/models//files"),
    ("GET", "/v1/responses/resp_1/else"),
    ("GET", "/v1/files%20chat/completions"),
    ("POST", "/v1/anything"),
]


@pytest.mark.parametrize(("method", "target"), OPEN)
def test_what_runs_a_model_is_open(method: str, target: str) -> None:
    assert is_allowed(keyed(), method, target)


@pytest.mark.parametrize(("method", "target"), CLOSED)
def test_everything_else_is_closed(method: str, target: str) -> None:
    assert not is_allowed(keyed(), method, target)
    assert is_allowed(keyed("*"), method, target)
    assert is_allowed(make_upstream(), method, target)


@pytest.mark.parametrize("entry", ["files", "/v1/files", "files/", "files*", "GET files", "GET /v1/files"])
def test_the_settings_open_a_path_and_those_below_it(entry: str) -> None:
    upstream = keyed(entry)
    assert is_allowed(upstream, "GET", "/v1/files")
    assert is_allowed(upstream, "GET", "/v1/files/file-1/content")
    assert is_allowed(upstream, "POST", "/v1/files") is not entry.startswith("GET")
    assert not is_allowed(upstream, "GET", "/v1/batches")
    assert not is_allowed(upstream, "GET", "/v1/x%20files")
    assert is_allowed(upstream, "POST", "/v1/chat/completions")


def test_a_stored_response_is_named_by_its_path() -> None:
    names = {
        "/v1/responses/resp_1": "resp_1",
        "/responses/resp_1/cancel?x": "resp_1",
        "/v1/responses/resp_1/input_items": "resp_1",
        "/v1/responses/r%65sp": "resp",
        "/v1/responses": None,
        "/v1/responses/input_tokens": None,
        "/v1/models/resp_1": None,
    }
    for target, name in names.items():
        assert find_stored_response(keyed(), "GET", target) == name
        assert find_stored_response(make_upstream(), "GET", target) is None
        assert find_stored_response(keyed("responses"), "GET", target) is None


def test_bodies_of_new_responses_may_name_earlier_ones() -> None:
    targets = (
        "/v1/responses",
        "/responses?x",
        "/v1/responses/input_tokens",
        "/v1/responses/compact",
        "/v1/messages",
        "/v1/messages/count_tokens?beta=true",
    )
    for target in targets:
        assert may_name_responses(keyed(), "POST", target)
        assert not may_name_responses(keyed(), "GET", target)
        assert not may_name_responses(make_upstream(), "POST", target)
    assert not may_name_responses(keyed(), "POST", "/v1/chat/completions")


def test_without_an_entry_nothing_is_granted() -> None:
    assert not is_granted(keyed(), "GET", "files")
    assert is_granted(keyed("GET batches/*"), "GET", "batches/1")
