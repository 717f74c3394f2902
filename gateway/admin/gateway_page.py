"""What the gateway says about itself on the admin port."""

from collections.abc import Callable
from typing import Final, Literal

from aiohttp import web
from yarl import URL

from gateway import __version__
from gateway.admin.answers import ClientFormat, GatewayPage
from gateway.settings import FormatName, Settings, name_provider

_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})


class GatewayFacts:
    """find_settings: those that hold now. port: of the data port, set once it listens."""

    def __init__(self, find_settings: Callable[[], Settings]) -> None:
        self._find_settings = find_settings
        self.port = 0

    def show(self, request: web.Request) -> GatewayPage:
        settings = self._find_settings()
        has_token = settings.admin.token is not None
        return GatewayPage(
            version=__version__,
            data_url=self._find_data_url(request),
            clients=[_describe_clients(settings, name) for name in settings.served_formats],
            token_required=has_token,
            texts="token" if has_token else "policy",
        )

    def _find_data_url(self, request: web.Request) -> str | None:
        """As the one who asks can reach it: what listens everywhere listens where the admin port is, too."""
        host = self._find_settings().listen.host
        try:
            if host in _EVERYWHERE:
                host = request.url.host or host
            return str(URL.build(scheme="http", host=host, port=self.port).origin()) if self.port else None
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
