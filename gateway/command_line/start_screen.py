"""What `refold serve` prints once it listens: where clients go, how to see that it works, what it does.

At most 16 lines with the built-in settings, each at most 100 columns wide unless an address is long.
"""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gateway.command_line.health import show_host
from gateway.reporting.reporter import COMPACTED
from gateway.settings import FormatName, Settings, UpstreamSettings
from gateway.settings.show import describe_tenants, describe_texts, list_what_it_does, show_store

_WIDTH: Final = 10
# For the example of a request. With a name that the upstream does not know, the headers are the same.
_MODELS: Final = {"api.openai.com": "gpt-4o-mini", "api.anthropic.com": "claude-haiku-4-5"}
_ANY_MODEL: Final = "MODEL"
_HELLO: Final = [{"role": "user", "content": "Hello"}]
_REQUESTS: Final[Mapping[FormatName, tuple[str, Mapping[str, object]]]] = {
    "chat": ("chat/completions", {"messages": _HELLO}),
    "responses": ("responses", {"input": "Hello"}),
    "messages": ("messages", {"max_tokens": 50, "messages": _HELLO}),
}
_JSON: Final = '-H "Content-Type: application/json"'
_HEADERS: Final[Mapping[FormatName, str]] = {
    "chat": _JSON,
    "responses": _JSON,
    "messages": f'-H "anthropic-version: 2023-06-01" {_JSON}',
}


@dataclass(frozen=True)
class Places:
    """Where a gateway listens by now, and what it knows from the start."""

    port: int
    # 0 if the admin port could not be opened.
    admin_port: int
    # Models whose window the bundled table has.
    windows: int
    # Where state is kept; None in memory.
    directory: Path | None
    # How this program is called, as typed in a shell.
    program: str = "refold"
    # False with a log level above `info`.
    logs_compactions: bool = True
    # Processes that serve the port.
    workers: int = 1


def render_start_screen(settings: Settings, places: Places) -> str:
    """Without secrets."""
    origin = f"http://{show_host(settings.listen.host)}:{places.port}"
    lines = [
        *zip(("clients", ""), _list_addresses(settings, origin), strict=False),
        ("admin", _describe_admin(settings, places.admin_port)),
        *list_what_it_does(settings),
        ("texts", describe_texts(settings)),
        ("models", _describe_windows(settings, places)),
        ("tenants", describe_tenants(settings)),
        *([("workers", f"{places.workers} processes on one port")] if places.workers > 1 else []),
        ("state", _describe_state(settings, places.directory)),
        *_list_first_steps(settings, places, origin),
    ]
    return "\n".join(
        [
            f"The gateway is running. Ctrl-C ends it. To see it work without a model: {places.program} demo",
            *(f"  {name:{_WIDTH}}{text}" for name, text in lines),
        ]
    )


def _list_addresses(settings: Settings, origin: str) -> Iterator[str]:
    """For the clients whose formats an upstream supports."""
    formats = settings.served_formats
    if "chat" in formats or "responses" in formats:
        yield f"base_url {origin}/v1"
    if "messages" in formats:
        yield f"Claude Code and Anthropic SDKs: {origin}, without /v1"


def _list_first_steps(settings: Settings, places: Places, origin: str) -> Iterator[tuple[str, str]]:
    """A request to paste, what it shows, and what the log says later."""
    names = ("test", "", "")
    yield from zip(names, _render_request(settings, origin), strict=True)
    if settings.response_headers:
        yield "shows", "x-gateway-plan: passthrough, and other x-gateway headers, once the upstream answers"
    if places.logs_compactions:
        yield "log", f"at each compaction: INFO gateway.compactor {COMPACTED.replace('%d', '…')} …"


def _render_request(settings: Settings, origin: str) -> tuple[str, str, str]:
    """One `curl` in three lines, which shows status and headers: of a chat, if an upstream supports it."""
    upstream = settings.choose_upstream("chat")
    wire_format: FormatName = "chat" if "chat" in upstream.formats else sorted(upstream.formats)[0]
    exact = (rule.match for rule in settings.models if not set("*?[") & set(rule.match))
    model = next(exact, _MODELS.get(urlsplit(upstream.base_url).hostname or "", _ANY_MODEL))
    path, body = _REQUESTS[wire_format]
    text = json.dumps({"model": model, **body}, separators=(",", ":"))
    return (
        f"curl -sS -o /dev/null -D - {origin}/v1/{path} \\",
        f"  {_render_credential(settings, upstream, wire_format)}{_HEADERS[wire_format]} \\",
        f"  -d {shlex.quote(text)}",
    )


def _render_credential(settings: Settings, upstream: UpstreamSettings, wire_format: FormatName) -> str:
    """The header with the caller's own key; "" if every caller may use the upstream's."""
    if settings.tenants:
        return '-H "Authorization: Bearer KEY-OF-A-TENANT" '
    if upstream.api_key is not None:
        return ""
    if wire_format == "messages":
        return '-H "x-api-key: $ANTHROPIC_API_KEY" '
    return '-H "Authorization: Bearer $OPENAI_API_KEY" '


def _describe_windows(settings: Settings, places: Places) -> str:
    rules = f", rules of yours: {len(settings.models)}" if settings.models else ""
    has_lists = any(upstream.discover for upstream in settings.upstreams.values())
    asked = ", upstreams are asked" if has_lists else ""
    return f"{places.windows:,} windows are known{rules}{asked}; see {places.program} models NAME"


def _describe_state(settings: Settings, directory: Path | None) -> str:
    if directory is None and settings.store == "memory:":
        return "in memory, lost at the next restart"
    return f"{directory or show_store(settings.store)}, kept for {settings.retention.days:g} days"


def _describe_admin(settings: Settings, port: int) -> str:
    if not port:
        return "not open, see the log"
    token = ", with its token" if settings.admin.token is not None else ""
    address = f"http://{show_host(settings.admin.host)}:{port}/"
    return f"{address} in a browser, /api/v1 and /metrics for programs{token}"
