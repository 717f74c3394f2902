"""What a settings file may say about an upstream: where it is, how it is reached, and with what.

Values of `headers` and `query` may be secrets, and a proxy's URL may hold a password: none of them is shown.
"""

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from gateway.settings.section import Section
from gateway.settings.values import NonEmpty, PositiveFloat, PositiveInt, Secret, check_url

FormatName = Literal["chat", "responses", "messages"]
WIRE_FORMATS: tuple[FormatName, ...] = ("chat", "responses", "messages")
AuthForm = Literal["bearer", "api-key", "x-api-key"]

# Every form in which an API takes a credential: OpenAI and most others, Anthropic, Azure OpenAI, Google,
# Azure API Management, Cloudflare AI Gateway. Google and Azure API Management take it in the query, too.
CREDENTIAL_HEADERS = (
    *("authorization", "x-api-key", "api-key", "x-goog-api-key"),
    *("ocp-apim-subscription-key", "cf-aig-authorization"),
)
CREDENTIAL_PARAMETERS = ("key", "subscription-key")

_ALLOWED = re.compile(r"(?:[A-Z]+ )?[^\s?#]+")
# What people copy from an example of a request.
_ENDPOINT_ENDINGS = ("/chat/completions", "/completions", "/responses", "/messages", "/models", "/embeddings")
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# The gateway writes these itself, for each connection and each body.
_RESERVED = frozenset(
    {
        *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        *("host", "expect", "content-length", "content-type", "content-encoding"),
    }
)
_GATEWAY_PREFIX = "x-gateway-"


def _check_base_url(url: str) -> str:
    """The base of an API, to which the gateway adds the path of each request."""
    url = check_url(url)
    for ending in _ENDPOINT_ENDINGS:
        if url.endswith(ending):
            raise ValueError(f"must end before {ending}: write {url.removesuffix(ending)}")
    return url


def _check_allowed(entry: str) -> str:
    if not _ALLOWED.fullmatch(entry):
        raise ValueError("must be PATH or METHOD PATH, such as files or 'GET batches/*'")
    return entry


def _check_header_name(name: str) -> str:
    lower = name.lower()
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError("must be names of headers")
    if lower in _RESERVED or lower.startswith(_GATEWAY_PREFIX):
        raise ValueError(f"must not name {lower}, which the gateway writes itself")
    return name


def _check_header_value(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if not text or text != text.strip() or not (text.isascii() and text.isprintable()):
        raise ValueError("must be visible ASCII, as a header can carry it, and not empty")
    return value


def _check_proxy(url: str) -> str:
    """Errors do not show the URL, because it could contain a password."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("must be http://HOST:PORT, https://HOST:PORT or off")
    return url


_HeaderName = Annotated[str, AfterValidator(_check_header_name)]
_HeaderValue = Annotated[SecretStr, AfterValidator(_check_header_value)]


class UpstreamSection(Section):
    base_url: Annotated[str, AfterValidator(_check_base_url)] = Field(
        description="Requests go to base_url + the path without a leading /v1."
    )
    api_key: Secret | None = Field(
        default=None, description="Replaces the caller's credential; null: the caller's is forwarded."
    )
    auth: AuthForm | None = Field(
        default=None,
        description="How api_key is sent: bearer, api-key or x-api-key; null: as the wire format wants it.",
    )
    headers: dict[_HeaderName, _HeaderValue] = Field(
        default_factory=dict, description="Sent with each request, in place of the caller's of that name."
    )
    query: dict[NonEmpty, SecretStr] = Field(
        default_factory=dict, description="Added to each URL, in place of the caller's of that name."
    )
    allow: list[Annotated[str, AfterValidator(_check_allowed)]] = Field(
        default_factory=list,
        description="With api_key: further paths for callers, besides those that run a model; * opens all.",
    )
    formats: list[FormatName] = Field(
        default=list(WIRE_FORMATS),
        min_length=1,
        description="Wire formats that go to it: chat, responses (Codex), messages (Claude Code).",
    )
    include_usage: bool = Field(
        default=True,
        description="Request usage in streams (stream_options.include_usage) if the caller did not.",
    )
    discover: bool = Field(
        default=True,
        description="Query its /v1/models in the background for limits that are not configured.",
    )
    max_body_bytes: PositiveInt | None = Field(
        default=None, description="Largest request body that it accepts, in bytes; null: unknown."
    )
    max_images: PositiveInt | None = Field(
        default=None, description="Most images that it accepts in one request; null: unknown."
    )
    connect_seconds: PositiveFloat = Field(default=10, description="Longest wait for a connection.")
    idle_seconds: PositiveFloat = Field(
        default=600, description="Longest silence of the upstream until a request fails."
    )
    ca_file: NonEmpty | None = Field(
        default=None, description="PEM file of the authorities that it is trusted by; null: the system's."
    )
    client_cert: NonEmpty | None = Field(
        default=None, description="PEM file with the certificate and key that the gateway shows to it."
    )
    proxy: Literal["off"] | Annotated[str, AfterValidator(_check_proxy)] | None = Field(
        default=None,
        repr=False,
        description="URL of an HTTP proxy to it; off: none; null: by HTTPS_PROXY, HTTP_PROXY, NO_PROXY.",
    )
