from gateway.core.compaction.breaker import Breaker


def test_it_opens_after_three_failures_in_a_row() -> None:
    breaker = Breaker()
    for failures in range(3):
        assert breaker.allows(float(failures))
        breaker = breaker.with_failure(float(failures))
    assert not breaker.allows(3.0)


def test_it_allows_one_attempt_after_a_minute_and_opens_again_if_that_fails() -> None:
    breaker = Breaker()
    for _ in range(3):
        breaker = breaker.with_failure(100.0)
    assert not breaker.allows(159.9)
    assert breaker.allows(160.0)
    assert not breaker.with_failure(160.0).allows(160.1)


def test_two_failures_do_not_open_it() -> None:
    breaker = Breaker().with_failure(0.0).with_attempt(0.0).with_failure(0.0)
    assert breaker.allows(0.0)


def test_while_open_it_allows_one_attempt_at_a_time() -> None:
    opened = Breaker().with_failure(0.0).with_failure(0.0).with_failure(0.0)
    assert opened.allows(60.0)
    assert not opened.with_attempt(60.0).allows(61.0)
