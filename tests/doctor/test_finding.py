"""Findings as values."""

from gateway.doctor.finding import STATUSES, blame, choose_level, note_ok, warn


def test_the_worst_finding_decides() -> None:
    ok, warning, problem = note_ok("s", "w"), warn("s", "w", "f"), blame("s", "w", "f")
    assert choose_level([]) == "ok" and choose_level([ok]) == "ok"
    assert choose_level([ok, warning]) == "warning" and choose_level([problem, ok, warning]) == "problem"
    assert [STATUSES[each.level] for each in (ok, warning, problem)] == [0, 1, 2]
