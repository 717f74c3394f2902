"""What a provider's cache has of a prompt."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.money import Price
from gateway.core.sizing.usage import Usage
from gateway.replay.prefix_cache import NOT_CACHED, CacheKind, CacheUse, choose_cache, use_cache

_TOKENS = st.integers(0, 50_000)


@pytest.mark.parametrize(
    ("price", "kind"),
    [
        (None, "automatic"),
        (Price(input=1, output=8), "none"),
        (Price(input=1, cached_input=1, output=8), "none"),
        (Price(input=1, cached_input=0.1, output=8), "automatic"),
        (Price(input=1, cached_input=0.1, cache_write=1.25, output=8), "marked"),
    ],
)
def test_the_prices_tell_which_cache_a_provider_has(price: Price | None, kind: CacheKind) -> None:
    assert choose_cache(price) == kind


@pytest.mark.parametrize(("shared", "read"), [(1_023, 0), (1_024, 1_024), (1_300, 1_280), (9_000, 4_992)])
def test_an_automatic_cache_reads_whole_steps(shared: int, read: int) -> None:
    assert use_cache("automatic", 5_000, shared, (), ()) == CacheUse(read)


def test_a_marked_cache_reads_up_to_an_earlier_mark_and_writes_up_to_its_own() -> None:
    first = use_cache("marked", 6_000, 0, (), (2_000, 5_000))
    assert first == CacheUse(0, 5_000, (2_000, 5_000))
    grown = use_cache("marked", 8_000, 6_000, first.ends, (2_000, 7_500))
    assert grown == CacheUse(5_000, 2_500, (2_000, 5_000, 7_500))
    broken = use_cache("marked", 4_000, 3_000, grown.ends, (2_000, 3_900))
    assert broken == CacheUse(2_000, 1_900, (2_000, 3_900))


def test_a_marked_cache_without_marks_neither_reads_nor_writes() -> None:
    assert use_cache("marked", 6_000, 5_000, (5_000,), ()) == CacheUse(0, 0, (5_000,))


def test_without_a_cache_usage_names_none() -> None:
    assert use_cache("none", 6_000, 5_000, (), (5_000,)) == NOT_CACHED
    assert NOT_CACHED.make_usage(6_000, 70) == Usage(6_000, 70)


@example("marked", 0, 1, [1], [])
@given(st.sampled_from(["automatic", "marked"]), _TOKENS, _TOKENS, st.lists(_TOKENS), st.lists(_TOKENS))
def test_no_more_is_read_and_written_than_the_prompt_has(
    kind: CacheKind, prompt: int, shared: int, kept: list[int], marked: list[int]
) -> None:
    marked = [min(each, prompt) for each in marked]
    use = use_cache(kind, prompt, shared, kept, marked)
    assert 0 <= (use.read or 0) <= min(prompt, shared)
    assert (use.read or 0) + (use.written or 0) <= prompt
