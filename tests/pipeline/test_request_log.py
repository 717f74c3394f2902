"""What the log says about requests, and what it never shows."""

import json
import logging
from collections.abc import Sequence

import pytest

from tests.builders.downstream import open_line, settle
from tests.builders.pipeline import SETTINGS, Pipeline, render_post, running_pipeline

_SECRET = "sk-toy"


def render(model: str = "toy", text: str = "Fix the parser.") -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": text}]}).encode()


async def ask(pipeline: Pipeline, *requests: bytes) -> None:
    for request in requests:
        async with open_line(pipeline.proxy.respond) as line:
            await line.send(request)
            await settle()


async def log_of(
    caplog: pytest.LogCaptureFixture, level: int, requests: Sequence[bytes], settings: str = SETTINGS
) -> list[str]:
    with caplog.at_level(level, "gateway.requests"):
        async with running_pipeline(settings) as pipeline:
            await ask(pipeline, *requests)
    return [record.getMessage() for record in caplog.records if record.name == "gateway.requests"]


async def test_the_first_request_of_a_conversation_has_a_line_with_its_window(
    caplog: pytest.LogCaptureFixture,
) -> None:
    request = render_post(render())
    (line,) = await log_of(caplog, logging.INFO, [request, request])
    assert line.startswith("conversation ") and " tenant key:" in line and " model 'toy' " in line
    assert " upstream " in line and line.endswith(" (configured)")


@pytest.mark.parametrize(
    ("model", "source"), [("gpt-4o", "128,000 (table)"), ("no-such-model", "- (unknown)")]
)
async def test_the_line_names_where_the_window_comes_from(
    caplog: pytest.LogCaptureFixture, model: str, source: str
) -> None:
    settings = SETTINGS.replace("toy", "other")
    (line,) = await log_of(caplog, logging.INFO, [render_post(render(model))], settings)
    assert line.endswith(f"window {source}")


async def test_a_model_name_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    model = "x\n2026-01-01 ERROR gateway you have been hacked\u2028\x1b[31m" + "y" * 150
    (line,) = await log_of(caplog, logging.INFO, [render_post(render(model))])
    assert line.isprintable() and len(line) < 400


async def test_each_request_has_a_line_at_debug_without_content_query_and_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    body = render(text="hunter2")
    requests = [
        render_post(body, "/v1/chat/completions?key=hunter2"),
        render_post(b"hunter2", "/v1/files?key=hunter2"),
        render_post(b"{}", "/v1/../x?key=hunter2"),
    ]
    lines = (await log_of(caplog, logging.DEBUG, requests))[1:]
    assert lines[0].startswith("POST '/v1/chat/completions' status=200 plan=passthrough conversation=")
    assert f" bytes={len(body)} " in lines[0] and " seconds=" in lines[0] and " own_seconds=" in lines[0]
    assert lines[1].startswith("POST '/v1/files' status=200 plan=relayed upstream=")
    assert lines[2].startswith("POST '/v1/../x' status=400 plan=local seconds=")
    assert not any(secret in line for line in lines for secret in ("hunter2", _SECRET))


async def test_at_warning_there_is_no_line(caplog: pytest.LogCaptureFixture) -> None:
    assert await log_of(caplog, logging.WARNING, [render_post(render())]) == []


async def test_a_conversation_at_a_path_that_is_not_understood_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    paths = [
        "/openai/v1/chat/completions?key=hunter2",
        "/other/chat/completions",
        "/v1/completions",
        "/api/chat",
        "/v1beta/models/gemini:generateContent",
        "/v1/files",
    ]
    requests = [render_post(render(), path) for path in paths]
    requests.append(render_post(render(), "/x/responses", ["x-gateway-bypass: 1"]))
    lines = await log_of(caplog, logging.WARNING, requests)
    named = [line.split("'")[1] for line in lines]
    assert named == ["/openai/v1/chat/completions", "/completions", "/api/chat", paths[4]]
    assert all("compare the client's base_url" in line for line in lines)


@pytest.mark.parametrize("path", ["//chat/completions", "/v1//chat/completions/", "/v1/v1/chat/completions"])
async def test_a_path_with_a_slash_or_a_version_too_many_is_served(
    caplog: pytest.LogCaptureFixture, path: str
) -> None:
    with caplog.at_level(logging.WARNING):
        async with running_pipeline() as pipeline:
            await ask(pipeline, render_post(render(), path))
            (exchange,) = pipeline.relay.exchanges
            assert exchange.headers["x-gateway-plan"] == "passthrough"
            assert exchange.call.head.target.endswith("/chat/completions")
            assert "//" not in exchange.call.head.target and "/v1/v1" not in exchange.call.head.target
    assert caplog.records == []
