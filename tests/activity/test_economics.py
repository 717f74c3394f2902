"""The sums that operators see of one conversation, and of several."""

from msgspec.structs import asdict

from gateway.activity.economics import CacheBreaks, Economics, make_economics, render_economics, sum_economics
from gateway.activity.record import ConversationActivity
from gateway.core.limits.model_limits import Limits
from gateway.core.money import Price
from gateway.core.sizing.usage import Usage
from tests.activity.talk import make_book, plan, receive, turn
from tests.builders.chat import make_pivot

_PIVOT = make_pivot(receive().conversation, 5)


def make_activity() -> ConversationActivity:
    book = make_book()
    book.use_prices(lambda *_: Price(input=1, output=1))
    small = turn(limits=Limits(context=1_000))
    book.note_request(small, plan(900, 900), Usage(900, 10, 500, 400))
    book.note_request(small, plan(1_200, 300, _PIVOT), Usage(300, 10, 50, 250))
    activity = book.find("c")
    assert activity is not None
    return activity


def make() -> Economics:
    return make_economics(make_activity())


def test_one_conversation_is_told_with_what_broke_its_cache_and_where_it_would_have_ended() -> None:
    assert make() == Economics(
        prompt_tokens=1_200,
        cached_tokens=550,
        cache_write_tokens=650,
        output_tokens=20,
        breaks=CacheBreaks(compaction=1),
        compared_requests=1,
        with_usd=0.00091,
        without_usd=0.00091,
        died=1,
    )


def test_several_are_added_field_by_field() -> None:
    other = Economics(prompt_tokens=3, riding_usd=0.5, without_usd=2.0, breaks=CacheBreaks(history=4))
    found = sum_economics([make(), other])
    assert (found.prompt_tokens, found.riding_usd, found.breaks) == (
        1_203,
        0.5,
        CacheBreaks(compaction=1, history=4),
    )
    assert (found.with_usd, found.without_usd, found.died) == (0.00091, 2.00091, 1)
    assert sum_economics([]) == Economics()
    assert set(asdict(found)) == set(Economics.__struct_fields__)


def test_a_line_has_what_is_known_of_one_conversation() -> None:
    assert render_economics(None) == "requests=0"
    assert render_economics(make_activity()) == (
        "requests=2, received=2100, sent=1200, saved=900, prompt=1200, cached=550, written=650, output=20, "
        "cache_breaks=1, summary_calls=0, riding_calls=0, compared_requests=1, died_at=2, "
        "spent_usd=0.001220, with_usd=0.000910, without_usd=0.000910"
    )
