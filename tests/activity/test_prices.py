from gateway.activity.prices import find_no_price


def test_without_prices_no_model_has_one() -> None:
    assert find_no_price("gpt-4o") is None
