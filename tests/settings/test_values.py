"""Single values that several sections have."""

import pytest
from pydantic import SecretStr

from gateway.settings.values import check_secret


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "must not be empty"),
        ("hunter2 x", "spaces"),
        ("hunter2\n", "line ends"),
        ("hunter2\u00e9", "cannot carry"),
    ],
)
def test_a_secret_must_fit_into_a_header_and_is_never_shown(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected) as caught:
        check_secret(SecretStr(text))
    assert "hunter2" not in str(caught.value)


def test_a_secret_that_fits_stays_as_it_is() -> None:
    secret = SecretStr("sk-$%&!~")
    assert check_secret(secret) is secret
