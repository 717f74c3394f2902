"""Values that come from references take the type of their key."""

from pathlib import Path

import pytest

from tests.builders.settings import KEYED, load_text


@pytest.mark.parametrize("quoted", ["${PORT:-9}", '"${PORT:-9}"'])
def test_a_reference_takes_the_type_of_its_key(tmp_path: Path, quoted: str) -> None:
    text = f"{KEYED}listen:\n  port: {quoted}\nresponse_headers: ${{OFF}}\n".replace("sk-up", "${KEY}")
    settings = load_text(tmp_path, text, {"KEY": "0123", "OFF": "false"})
    key = settings.upstreams["default"].api_key
    assert (settings.listen.port, settings.response_headers) == (9, False)
    assert key is not None
    assert key.get_secret_value() == "0123"


def test_an_empty_reference_means_that_there_is_no_key(tmp_path: Path) -> None:
    settings = load_text(tmp_path, KEYED.replace("sk-up", "${KEY:-}"))
    assert settings.upstreams["default"].api_key is None
