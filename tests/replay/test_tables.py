"""The result in a terminal of 80 columns."""

from rich.console import Console, RenderableType

from gateway.replay.comparison import Result, make_result
from gateway.replay.money import Pricing
from gateway.replay.runs import CompactionRun
from gateway.replay.tables import render_policies, render_sessions
from tests.replay.samples import PRICING, make_run


def _print(what: RenderableType) -> list[str]:
    console = Console(width=80, record=True, force_terminal=False, file=None, quiet=False)
    with console.capture() as capture:
        console.print(what)
    return capture.get().splitlines()


def _make(policy: str, sent: int) -> Result:
    made = CompactionRun(when="after", kind="summary", pre_tokens=900, covers=4)
    run = make_run(received=4_000_000, sent=sent, compactions=(made,), window=64_000_000)
    return make_result(policy, [run], PRICING)


def test_policies_stand_side_by_side_and_the_best_is_marked() -> None:
    lines = _print(render_policies([_make("adaptive", 900_000), _make("rolling", 800_000)]))
    assert "rolling *" in lines[0]
    assert "adaptive *" not in lines[0]
    sent = next(line for line in lines if line.startswith("tokens sent"))
    assert sent.split() == ["tokens", "sent", "900K", "800K"]
    assert any(line.split()[:2] == ["saved", "$3.10"] for line in lines)
    assert lines[-1].startswith("*  best: the fewest requests beyond the window, then the least money")
    assert max(map(len, lines)) <= 80


def test_many_policies_make_several_tables_and_still_fit() -> None:
    lines = _print(render_policies([_make(f"policy-number-{at}", 1_000 + at) for at in range(6)]))
    assert sum(line.startswith("all sessions") for line in lines) == 2
    assert max(map(len, lines)) <= 80


def test_without_prices_there_is_a_dash_and_another_rule() -> None:
    lines = _print(
        render_policies([make_result(name, [make_run()], Pricing(lambda _: None)) for name in "ab"])
    )
    assert any(line.split() == ["cost", "with", "–", "–"] for line in lines)
    assert "the fewest tokens outside of a cache" in "".join(lines[-2:])


def test_sessions_are_listed_from_the_largest_with_the_end_of_long_names() -> None:
    sessions = [
        ("folder/of/a/very/long/name/session-1", _make("a", 4_000)),
        ("short", make_result("a", [make_run()], PRICING)),
        ("third", make_result("a", [make_run(received=10, sent=10)], PRICING)),
    ]
    lines = _print(render_sessions("session", sessions, most=2))
    assert lines[0].split()[:2] == ["session", "reqs"]
    assert lines[2].startswith("…ery/long/name/session-1 ")
    assert lines[3].split()[:2] == ["short", "1"]
    assert lines[-1] == "and 1 smaller ones; --json has all"
    assert max(map(len, lines)) <= 80


def test_a_name_cannot_command_the_terminal() -> None:
    lines = _print(render_sessions("session", [("a\x1b[2Jb", _make("a", 1))], most=5))
    assert not any("\x1b" in line for line in lines)
