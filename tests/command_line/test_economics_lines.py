"""What conversations cost, in words."""

from gateway.activity.economics import CacheBreaks, Economics
from gateway.command_line.economics_lines import describe_cache, describe_comparison

_FOUND = Economics(
    prompt_tokens=5_000_000,
    cached_tokens=4_700_000,
    breaks=CacheBreaks(compaction=8, history=1),
    compared_requests=85,
    with_usd=1.66,
    without_usd=2.13,
    died=2,
)


def test_the_cache_is_told_with_the_causes_of_its_breaks() -> None:
    assert describe_cache(_FOUND, 9) == "94% of 5M prompt tokens; 9 breaks (8 compactions, 1 changed history)"
    assert describe_cache(Economics(), 0) == "nothing known; 0 breaks"


def test_the_comparison_says_where_it_ends() -> None:
    money = "$2.13, with it $1.66, for 85 requests"
    assert describe_comparison(_FOUND) == f"{money}; 2 conversations would end"
    assert describe_comparison(_FOUND, 86) == f"{money}; request 86 would not have fit"
    assert describe_comparison(Economics()) == "not known: no price, or no usage"
