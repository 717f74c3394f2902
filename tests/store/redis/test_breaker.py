"""When a server counts as away, and when as back."""

from gateway.store.redis.breaker import LinkBreaker


def closed(at: float = 0.0) -> LinkBreaker:
    breaker = LinkBreaker()
    assert breaker.is_open and breaker.note_trial(at)
    return breaker


def test_it_opens_at_a_loss_and_closes_at_one_trial_in_time() -> None:
    breaker = closed()
    breaker.note_loss(1_000)
    assert breaker.is_open
    assert breaker.note_trial(1_002) and not breaker.is_open


def test_a_server_that_fails_soon_after_its_return_has_to_answer_three_times() -> None:
    breaker = closed(at=1_000)
    breaker.note_loss(1_005)
    assert [breaker.note_trial(1_006) for _ in range(3)] == [False, False, True]
    breaker.note_loss(2_000)
    assert breaker.note_trial(2_001)


def test_whatever_happened_the_pauses_before_the_return_are_short() -> None:
    breaker = closed(at=1_000)
    breaker.note_loss(1_001)
    pauses = [breaker.next_pause_seconds() for _ in range(50)]
    # Three trials are needed, each after a pause; the first pause may have just begun.
    assert 4 * max(pauses) <= 2
