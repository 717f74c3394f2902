"""CPU time per event of a stream: deltas of 100 bytes, usage requested by the client or by the gateway."""

from collections.abc import Sequence

from bench.measure import Case, Pair, Round, compare
from bench.subject import Subject
from bench.table import print_table, render_target
from bench.talk import Shape

_COLUMNS = ("case", "bare us/event", "gateway us/event", "CPU ratio", "target", "events per read b/g")
_MAX_RATIO = 2.0
# With few streams the measured process keeps up, and reads most events one by one.
_STREAMS = 8


async def print_sse(bare: Subject, gateway: Subject, *, events: int, rounds: int) -> None:
    rows = []
    for name, asks_usage in (
        ("usage requested by the client", True),
        ("usage requested by the gateway", False),
    ):
        shape = Shape(
            model="bench-wide",
            start_bytes=900,
            turn_bytes=300,
            turns=2,
            has_tools=False,
            events=events,
            asks_usage=asks_usage,
        )
        case = Case(name=name, shape=shape, talks=_STREAMS, primed=0, connections=_STREAMS)
        rows.append(_render(case, await compare(case, bare, gateway, rounds)))
    print_table(f"SSE: {_STREAMS} streams of {events} events, 100-byte deltas", _COLUMNS, rows)


def _render(case: Case, pair: Pair) -> tuple[str, ...]:
    events = case.shape.events
    return (
        case.name,
        f"{pair.bare_us / events:.1f}",
        f"{pair.gateway_us / events:.1f}",
        f"{pair.cpu_ratio:.2f}",
        render_target(pair.cpu_ratio, _MAX_RATIO, at_least=False),
        f"{_events_per_read(case, pair.bare)}/{_events_per_read(case, pair.gateway)}",
    )


def _events_per_read(case: Case, rounds: Sequence[Round]) -> str:
    load = rounds[0].load
    return f"{load.requests * case.shape.events / load.reads:.2f}"
