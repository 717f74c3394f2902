"""What a settings file may say about a tenant: keys, upstream, rules, and how much it may use.

A key stands in the file as text, or as `sha256:` and the SHA-256 of the key, which is no secret. The program
only knows the hash of either.
"""

import hashlib
import re
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from gateway.settings.model_rule import ModelRule
from gateway.settings.section import Section
from gateway.settings.values import NonEmpty, NonNegativeInt, PositiveInt, Secret, check_secret

_HASHED = "sha256:"
_HASH = re.compile(r"[0-9a-f]{64}")


def fingerprint(credential: str) -> str:
    """The SHA-256 of a credential, under which it is compared and kept."""
    return hashlib.sha256(credential.encode("utf-8", "surrogateescape")).hexdigest()


def fingerprint_key(key: SecretStr) -> str:
    """That of a key in the file, which may be a hash already."""
    text = key.get_secret_value()
    return text.removeprefix(_HASHED).lower() if text.startswith(_HASHED) else fingerprint(text)


def _check_key(key: SecretStr) -> SecretStr:
    check_secret(key)
    if key.get_secret_value().startswith(_HASHED) and not _HASH.fullmatch(fingerprint_key(key)):
        raise ValueError(
            "must have 64 hexadecimal digits after sha256:, as `printf %s KEY | sha256sum` writes them"
        )
    return key


TenantKey = Annotated[SecretStr, AfterValidator(_check_key)]


class SummaryBudgetSection(Section):
    """What all summaries of a tenant may use. Beyond it, old turns become digests."""

    calls_per_hour: NonNegativeInt | None = Field(
        default=None, description="Most summary calls in an hour; 0: none; null: no limit."
    )
    tokens_per_hour: NonNegativeInt | None = Field(
        default=None, description="Most tokens of these calls in an hour, prompt and reply; null: no limit."
    )


class TenantSection(Section):
    name: NonEmpty = Field(description="State is kept under it; shown in events, hooks and the admin API.")
    keys: list[TenantKey] = Field(
        min_length=1,
        description="The credentials that its callers send, each as text or as sha256: and its hash.",
    )
    upstream: NonEmpty | None = Field(
        default=None, description="Its upstream; null: the first that supports the wire format."
    )
    api_key: Secret | None = Field(
        default=None,
        description="Its own credential at its upstream, in place of the upstream's and the caller's.",
    )
    policy: NonEmpty = Field(default="default", description="Its policy, by name.")
    models: list[ModelRule] = Field(
        default_factory=list, description="Rules for this tenant; they come before those for all tenants."
    )
    requests_per_minute: PositiveInt | None = Field(
        default=None, description="Most requests in a minute, over all processes; null: no limit."
    )
    concurrent_requests: PositiveInt | None = Field(
        default=None, description="Most requests at the same time, over all processes; null: no limit."
    )
    summary_budget: SummaryBudgetSection = Field(
        default_factory=SummaryBudgetSection, description="What its summaries may use in an hour."
    )
