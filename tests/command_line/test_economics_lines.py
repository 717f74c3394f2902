"""What conversations cost, in words."""

from msgspec.structs import replace

from gateway.activity.economics import CacheBreaks, Economics
from gateway.command_line.economics_lines import describe_cache, describe_saved

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


def test_what_was_saved_leads_with_its_sign_and_says_where_it_ends() -> None:
    money = "+$0.4700 saved: $2.13 without the gateway, $1.66 with it, for 85 requests"
    assert describe_saved(_FOUND) == f"{money}; 2 conversations would have ended"
    assert describe_saved(_FOUND, 86) == f"{money}; request 86 would not have fit"
    dearer = replace(_FOUND, with_usd=3.33, died=0)
    more = "−$1.20 more spent: $2.13 without the gateway, $3.33 with it, for 85 requests"
    assert describe_saved(dearer) == more
    assert describe_saved(Economics()) == "saved –: no price or no usage known"
