"""Types of single values that several sections of a settings file have, with their checks."""

from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr


def check_secret(secret: SecretStr) -> SecretStr:
    """A secret is sent in a header: it must be visible ASCII and not empty."""
    text = secret.get_secret_value()
    if not text:
        raise ValueError("must not be empty")
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise ValueError("must not contain spaces, line ends or other characters that a header cannot carry")
    return secret


Secret = Annotated[SecretStr, AfterValidator(check_secret)]
NonEmpty = Annotated[str, Field(min_length=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
