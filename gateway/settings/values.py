"""Types of single values that several sections of a settings file have, with their checks."""

import ssl
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr


def check_secret(secret: SecretStr) -> SecretStr:
    """A secret is sent in a header: it must be visible ASCII and not empty."""
    text = secret.get_secret_value()
    if not text:
        raise ValueError("must not be empty")
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise ValueError("must not contain spaces, line ends or other characters that a header cannot carry")
    return secret


def check_url(url: str) -> str:
    """Without the trailing slash. Errors do not show the URL, because it could contain a password."""
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("must not contain spaces")
    try:
        parts = urlsplit(url)
        host, port, has_user = parts.hostname, parts.port, "@" in parts.netloc
    except ValueError:
        raise ValueError("is not a valid URL") from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise ValueError("must be http://HOST… or https://HOST…")
    if has_user:
        raise ValueError("must not contain a user or password; use api_key")
    if "?" in url or "#" in url:
        raise ValueError("must not contain a query or fragment")
    return url.rstrip("/")


def load_tls(ca_file: str | None, client_cert: str | None) -> ssl.SSLContext:
    """What a connection trusts, and shows. Paths of PEM files; without the first, the system's authorities.

    Raises OSError for a file that cannot be read, or that holds nothing of the kind.
    """
    context = ssl.create_default_context(cafile=ca_file)
    if client_cert is not None:
        # An empty password: a key that needs one must not ask for it on the terminal.
        context.load_cert_chain(client_cert, password="")
    return context


Secret = Annotated[SecretStr, AfterValidator(check_secret)]
NonEmpty = Annotated[str, Field(min_length=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
