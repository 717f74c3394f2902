"""What a settings file may say: every key, its type, its range and its default.

Checks each value by itself; how values fit together is for `crosscheck`. `policy_schema` holds the
policies. Each description is one line of `config/reference.yaml`.
"""

import fnmatch
import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from gateway.core.limits.model_limits import Limits
from gateway.settings.policy_schema import PolicySection
from gateway.settings.section import Section

FormatName = Literal["chat", "responses", "messages"]
WIRE_FORMATS: tuple[FormatName, ...] = ("chat", "responses", "messages")

MEBIBYTE = 1 << 20

_STORE = re.compile(r"disk:.+|memory:|redis://[^\s/?#]+(/\d+)?")


def _normalised_url(url: str) -> str:
    """Without its trailing slash. The errors show nothing of it: it could hold a password."""
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("must not hold spaces")
    try:
        parts = urlsplit(url)
        host, port, has_user = parts.hostname, parts.port, "@" in parts.netloc
    except ValueError:
        raise ValueError("is not a valid URL") from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise ValueError("must be http://HOST… or https://HOST…")
    if has_user:
        raise ValueError("must not hold a user or password; use api_key")
    if "?" in url or "#" in url:
        raise ValueError("must not hold a query or fragment")
    return url.rstrip("/")


def _checked_hook_url(url: str) -> str:
    """As it stands: a path or a query may hold a secret, so errors show nothing of it either."""
    _normalised_url(url.partition("?")[0])
    if "#" in url or any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("must not hold spaces or a fragment")
    return url


def _checked_secret(secret: SecretStr) -> SecretStr:
    """A secret travels in a header: visible ASCII only, and never empty."""
    text = secret.get_secret_value()
    if not text:
        raise ValueError("must not be empty")
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise ValueError("must hold no spaces, line ends or other characters a header cannot carry")
    return secret


def _checked_store(url: str) -> str:
    if not _STORE.fullmatch(url):
        raise ValueError("must be disk:PATH, memory: or redis://HOST:PORT/DB")
    return url


def _checked_host(host: str) -> str:
    if not host or any(character.isspace() or character in "/[]@" for character in host):
        raise ValueError("must be an address or a host name, without brackets or a port")
    return host


Host = Annotated[str, AfterValidator(_checked_host)]
Port = Annotated[int, Field(ge=0, le=65_535)]
Secret = Annotated[SecretStr, AfterValidator(_checked_secret)]
Name = Annotated[str, Field(min_length=1)]
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]


class Listen(Section):
    host: Host = Field(default="127.0.0.1", description="Address of the data port; 0.0.0.0 for all.")
    port: Port = Field(default=8080, description="Data port; 0 takes any free one.")
    max_body_bytes: PositiveInt = Field(default=64 * MEBIBYTE, description="Larger requests get 413.")


class Admin(Section):
    host: Host = Field(default="127.0.0.1", description="Address of the admin port.")
    port: Port = Field(default=8081, description="Admin port, with /metrics; 0 takes any free one.")
    token: Secret | None = Field(
        default=None, description="Bearer token of the admin port; empty or null: none."
    )


class HookTarget(Section):
    url: Annotated[str, AfterValidator(_checked_hook_url)] = Field(
        repr=False, description="Gets a POST with JSON; redirects are not followed."
    )
    secret: Secret | None = Field(
        default=None, description="Signs timestamp and body (HMAC-SHA256); empty or null: not signed."
    )
    timeout_seconds: PositiveFloat = Field(
        default=5, description="Patience for its answer; then it has said nothing."
    )


class HookTargets(Section):
    pre_compact: list[HookTarget] = Field(
        default_factory=list, description="Asked before each summary: may add to it, or veto it."
    )
    session_start: list[HookTarget] = Field(
        default_factory=list, description="Told after each compaction that the conversation goes on."
    )


class Retention(Section):
    days: Annotated[float, Field(gt=0, le=3650)] = Field(
        default=7, description="State of a conversation that was not used for so long is dropped."
    )
    originals_bytes: PositiveInt = Field(
        default=256 * MEBIBYTE, description="Most disk for all originals; the oldest go first."
    )

    @property
    def seconds(self) -> float:
        return self.days * 86_400


class Cache(Section):
    """Sizes of what is held in memory for speed; anything dropped is read or computed again."""

    bodies: PositiveInt = Field(
        default=256, description="Of so many conversations at once the newest body is kept, to compare with."
    )
    bodies_bytes: PositiveInt = Field(
        default=64 * MEBIBYTE, description="At most so many bytes of bodies; older ones are read anew."
    )
    facts_bytes: PositiveInt = Field(default=2 * MEBIBYTE, description="What is known of single messages.")
    records_bytes: PositiveInt = Field(default=4 * MEBIBYTE, description="State in front of the store.")
    named_bytes: PositiveInt = Field(
        default=24 * MEBIBYTE,
        description="What requests may name (previous_response_id) instead of saying it.",
    )


class Keepalive(Section):
    after_seconds: PositiveFloat = Field(
        default=5, description="Silence before the first keep-alive; it commits a 200."
    )
    every_seconds: PositiveFloat = Field(default=5, description="Time between keep-alives.")


class UpstreamSection(Section):
    base_url: Annotated[str, AfterValidator(_normalised_url)] = Field(
        description="Where requests go: base_url + the path after an optional leading /v1."
    )
    api_key: Secret | None = Field(
        default=None, description="Replaces the caller's credential; null forwards it."
    )
    formats: list[FormatName] = Field(
        default=list(WIRE_FORMATS), min_length=1, description="What it speaks: chat, responses, messages."
    )
    include_usage: bool = Field(
        default=True,
        description="Ask streams for their usage (stream_options.include_usage) where the caller did not.",
    )
    discover: bool = Field(
        default=True,
        description="Ask its /v1/models, in the background, for limits that are not configured.",
    )
    max_body_bytes: PositiveInt | None = Field(
        default=None, description="Largest request body that it takes; null: not known."
    )
    max_images: PositiveInt | None = Field(
        default=None, description="Most pictures that it takes in one request; null: not known."
    )
    connect_seconds: PositiveFloat = Field(default=10, description="Patience for a connection.")
    idle_seconds: PositiveFloat = Field(default=600, description="Longest silence of an answer.")


class ModelRule(Section):
    """Limits, and perhaps a policy, of the models whose name fits a pattern; for each the first rule wins."""

    match: Name = Field(description="Pattern of model names, with * and ? and [abc]; case matters.")
    upstream: Name | None = Field(default=None, description="Only at this upstream; null: at every one.")
    context: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Tokens of prompt and reply together; null or 0: not set here."
    )
    input: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="Tokens of the prompt, where the model has such a limit; null or 0: not set here.",
    )
    output: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Tokens of the largest reply; null or 0: not set here."
    )

    policy: Name | None = Field(
        default=None, description="Policy of these models, whatever the tenant's; null: the tenant's."
    )

    @property
    def is_about_limits(self) -> bool:
        """A rule that only names a policy hides no other rule's limits."""
        return self.policy is None or self.limits != Limits()

    def applies_to(self, model: str, upstream: str) -> bool:
        return self.upstream in (None, upstream) and fnmatch.fnmatchcase(model, self.match)

    @property
    def limits(self) -> Limits:
        return Limits(context=self.context, input=self.input, output=self.output)


class TenantSection(Section):
    name: Name = Field(description="Shown in logs and figures; state belongs to it.")
    keys: list[Secret] = Field(min_length=1, description="What its callers send as their credential.")
    upstream: Name | None = Field(
        default=None, description="Its upstream; null: the first that speaks the format."
    )
    policy: Name = Field(default="default", description="Its policy.")


class FileSettings(Section):
    """The whole file. Absent `upstreams` mean the built-in ones, which `load` knows."""

    listen: Listen = Field(default_factory=Listen, description="Where clients connect.")
    admin: Admin = Field(default_factory=Admin, description="Where operators connect.")
    store: Annotated[str, AfterValidator(_checked_store)] = Field(
        default="disk:.gateway",
        description="Where state is kept: disk:PATH, redis://HOST:PORT/DB or memory:.",
    )
    hooks: HookTargets = Field(default_factory=HookTargets, description="Webhooks around a compaction.")
    retention: Retention = Field(default_factory=Retention, description="How long state is kept.")
    response_headers: bool = Field(
        default=True,
        description="Whether answers carry x-gateway-* headers (conversation, plan, tokens, warning).",
    )
    drain_seconds: Annotated[float, Field(ge=0)] = Field(
        default=30, description="At shutdown, time for open requests to finish."
    )
    keepalive: Keepalive = Field(
        default_factory=Keepalive, description="What streams send while a compaction is waited for."
    )
    cache: Cache = Field(default_factory=Cache, description="Memory for speed.")
    upstreams: dict[Name, UpstreamSection] = Field(
        default_factory=dict, description="The model APIs, by a name of your choice."
    )
    models: list[ModelRule] = Field(
        default_factory=list, description="Limits by model; first match wins; merged over the bundled table."
    )
    policies: dict[Name, PolicySection] = Field(
        default_factory=dict, description="What is done about a full window; 'default' always exists."
    )
    tenants: list[TenantSection] = Field(
        default_factory=list, description="Who may call; none: every caller key is its own tenant."
    )
