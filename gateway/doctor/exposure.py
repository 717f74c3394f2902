"""Who can reach the ports, and what protects them."""

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from gateway.doctor.finding import Diagnosis, note_ok, warn
from gateway.settings import Settings, describe_exposure, is_loopback, shows_texts
from gateway.settings.show import is_for_this_machine_only

_SUBJECT: Final = "exposure"
_SHORTEST_TOKEN: Final = 16
_NEW_TOKEN: Final = "export GATEWAY_ADMIN_TOKEN=$(openssl rand -hex 32)"


def examine_exposure(settings: Settings) -> Iterator[Diagnosis]:
    exposure = describe_exposure(settings)
    if exposure is not None:
        yield warn(
            _SUBJECT,
            exposure,
            "listen: {host: 127.0.0.1}  # or set `tenants`, as docs/configuration.md shows",
        )
    elif settings.tenants:
        yield note_ok(_SUBJECT, f"data port: {len(settings.tenants)} tenants with keys of their own")
    else:
        yield note_ok(_SUBJECT, f"data port: only this machine reaches {settings.listen.host}")
    yield from _examine_token(settings)
    for upstream in settings.upstreams.values():
        host = urlsplit(upstream.base_url).hostname or ""
        if upstream.base_url.startswith("http://") and upstream.api_key is not None and not is_loopback(host):
            what = f"upstream {upstream.name}: its api_key travels unencrypted to {host}"
            yield warn(_SUBJECT, what, f"base_url: https://{upstream.base_url.removeprefix('http://')}")


def _examine_token(settings: Settings) -> Iterator[Diagnosis]:
    token = settings.admin.token
    shown = ", ".join(name for name, policy in settings.policies.items() if shows_texts(settings, policy))
    if token is None and shown and is_for_this_machine_only(settings):
        yield note_ok(
            _SUBJECT, "admin port: without a token; it shows texts of conversations on this machine"
        )
    elif token is None and shown:
        what = f"admin port: without a token, and `show_texts` shows texts of conversations by policy {shown}"
        yield warn(_SUBJECT, what, _NEW_TOKEN)
    elif token is None:
        yield note_ok(_SUBJECT, "admin port: without a token, so it shows no texts of conversations")
    elif len(token.get_secret_value()) < _SHORTEST_TOKEN:
        yield warn(_SUBJECT, f"admin.token has less than {_SHORTEST_TOKEN} characters", _NEW_TOKEN)
    else:
        yield note_ok(_SUBJECT, "admin port: with a token")
