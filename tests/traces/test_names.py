import pytest

from gateway.traces import names


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://api.anthropic.com/v1", "anthropic"),
        ("https://mine.openai.azure.com/openai", "azure.ai.openai"),
        ("http://api.openai.com.evil.example", "local"),
        ("http://127.0.0.1:11434/v1", "local"),
    ],
)
def test_a_provider_is_known_by_its_host(base_url: str, expected: str) -> None:
    assert names.find_provider(base_url, "local") == expected


def test_the_name_of_a_model_is_cut() -> None:
    assert names.name_chat("gpt-4o") == "chat gpt-4o"
    assert len(names.name_chat("x" * 10_000)) < 140


def test_names_are_those_of_the_conventions() -> None:
    """Where the installed libraries know them. `compacted` is newer than they are."""
    known = pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    released = {value for value in vars(known).values() if isinstance(value, str)}
    ours = {value for value in vars(names).values() if isinstance(value, str) and value.startswith("gen_ai.")}
    assert ours - released == {names.COMPACTED}
    assert len(ours) > 12
