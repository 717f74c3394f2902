"""What the gateway says about itself on the admin port."""

from typing import Final, Literal

from aiohttp import web
from yarl import URL

from gateway import __version__
from gateway.admin.answers import ClientFormat, GatewayPage
from gateway.settings import FormatName, Settings, name_provider

_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})


def show_gateway(settings: Settings, port: int, request: web.Request) -> GatewayPage:
    """settings: those that hold now. port: of the data port; 0 while it does not listen."""
    has_token = settings.admin.token is not None
    return GatewayPage(
        version=__version__,
        data_url=_find_data_url(settings.listen.host, port, request),
        clients=[_describe_clients(settings, name) for name in settings.served_formats],
        token_required=has_token,
        texts="token" if has_token else "policy",
    )


def _find_data_url(host: str, port: int, request: web.Request) -> str | None:
    """As the one who asks can reach it: what listens everywhere listens where the admin port is, too."""
    try:
        if host in _EVERYWHERE:
            host = request.url.host or host
        return str(URL.build(scheme="http", host=host, port=port).origin()) if port else None
    except ValueError:
        # A `Host` that is none.
        return None


def _describe_clients(settings: Settings, name: FormatName) -> ClientFormat:
    upstream = settings.choose_upstream(name)
    own_key: Literal["caller", "none"] = "caller" if upstream.api_key is None else "none"
    return ClientFormat(
        format=name,
        provider=name_provider(upstream.base_url),
        key="tenant" if settings.tenants else own_key,
    )
