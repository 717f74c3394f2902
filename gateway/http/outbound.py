"""On which way an upstream is reached: through a proxy or not, and whose certificates are trusted.

A proxy is named by the upstream's settings, or else by HTTPS_PROXY, HTTP_PROXY and NO_PROXY. The library is
never told to read the environment itself: it would read `.netrc`, too, and add credentials from there.
"""

import os
import ssl
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies_environment
from urllib.request import proxy_bypass_environment as proxy_bypass  # type: ignore[attr-defined]

from gateway.settings import UpstreamSettings, is_loopback, load_tls

_OFF: Final = "off"
_SCHEME_END: Final = "://"


class Proxies:
    """Those of the environment, as it was when this was made."""

    def __init__(self) -> None:
        self._named = getproxies_environment()
        # By base URL and `proxy` of the settings.
        self._found: dict[tuple[str, str | None], str | None] = {}

    def choose(self, upstream: UpstreamSettings | None) -> str | None:
        """A URL, perhaps with user and password. None for an upstream that is reached directly, and where
        there is no upstream. An address of this machine is reached directly, unless its settings say other.
        """
        if upstream is None:
            return None
        key = (upstream.base_url, upstream.proxy)
        if key not in self._found:
            self._found[key] = self._find(*key)
        return self._found[key]

    def _find(self, base_url: str, proxy: str | None) -> str | None:
        if proxy is not None:
            return None if proxy == _OFF else proxy
        parts = urlsplit(base_url)
        named = self._named.get(parts.scheme)
        if not named or is_loopback(parts.hostname or "") or proxy_bypass(parts.netloc, self._named):
            return None
        return named if _SCHEME_END in named else f"http://{named}"


def choose_tls(upstream: UpstreamSettings | None) -> ssl.SSLContext | bool:
    """True: the system's authorities, or those of SSL_CERT_FILE. Raises OSError for an invalid file."""
    if upstream is None or not (upstream.ca_file or upstream.client_cert):
        return True
    paths = (upstream.ca_file, upstream.client_cert)
    # A renewed certificate is read again.
    changed = tuple(os.stat(path).st_mtime_ns for path in paths if path is not None)
    return _load_tls(paths, changed)


@lru_cache(64)
def _load_tls(paths: tuple[str | None, str | None], changed: tuple[int, ...]) -> ssl.SSLContext:
    """changed: when the files were changed last."""
    return load_tls(*paths)
