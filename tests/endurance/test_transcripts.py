"""Real sessions, far larger than the window they are played on, in each of the formats."""

import math
from dataclasses import dataclass

import pytest

from tests.covering import choose, choose_cover, cover
from tests.shared_data import requires_shared
from tests.toy.agent import Shape
from tests.toy.counting import TokenCounter
from tests.toy.dialect import Dialect
from tests.toy.economics import measure, simulate
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.messages import MESSAGES
from tests.toy.responses import RESPONSES, Responses
from tests.toy.running import run_session
from tests.toy.transcripts import count_bytes, find_large, load_transcript
from tests.toy.upstream import ToyUpstream

# Each file is played with a low and a high one.
_BIASES = (0.7, 1.0, 1.3, 1.6)
_MEDIUM_BYTES = 170_000


@dataclass(frozen=True)
class Case:
    file: str
    window: int
    bias: float

    def __str__(self) -> str:
        return f"{self.file}-{self.window}-{self.bias}"


# The largest that `make test` plays: its requests grow to nearly a megabyte.
_LARGE = Case("entire-claude-code/cd-95adddad32-0.json", 64_000, 1.0)


def list_cases() -> list[Case]:
    """Sessions of some forty requests first: a cover prefers what stands first."""
    try:
        files = find_large()
    except FileNotFoundError:
        return [Case("absent", 0, 1.0)]
    cases = [
        Case(file, window, _BIASES[(place + shift) % len(_BIASES)])
        for place, file in enumerate(files)
        for window, shift in ((32_000, 0), (64_000, 2))
    ]
    return sorted(cases, key=lambda case: abs(count_bytes(case.file) - _MEDIUM_BYTES))


CASES = list_cases()
PAIRS = choose_cover([(case.window, case.bias) for case in CASES])
LARGE = [place for place, case in enumerate(CASES) if case == _LARGE]


async def play(case: Case, shape: Shape) -> None:
    session = load_transcript(case.file)
    toy = ToyUpstream(window=case.window, bias=case.bias)
    async with toy, running_gateway(make_settings(toy)) as gateway:
        run = await run_session(session, gateway.base_url, toy, shape)
    ideal = simulate(measure(session, TokenCounter(case.bias), shape), case.window)

    assert run.failed == []
    # Only what no summary can replace, such as a result larger than the window, is left to the upstream.
    assert len(run.refusals) <= run.plans.count("cut")
    assert max(seen.prompt_tokens for seen in run.outgoing if seen.refusal is None) <= case.window
    # The session may end while a summary is prepared that it no longer needs.
    assert len(run.summaries) <= math.ceil(1.5 * ideal.summaries) + (ideal.summaries == 0)


@requires_shared
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", choose(CASES, [*PAIRS, *LARGE]), ids=str)
async def test_a_real_session_is_answered_to_its_end(case: Case) -> None:
    await play(case, Shape(max_tokens=4_096, stream=True))


DIALECTS: dict[str, Dialect] = {
    "messages": MESSAGES,
    "responses": RESPONSES,
    "responses-previous": Responses(history="previous"),
}
# Short sessions: the gateway treats all formats alike, and the whole list takes ten minutes.
SAMPLE = [
    Case("entire-claude-code/ec-38b74f08e3-3-coll.json", 32_000, 1.3),
    Case("entire-claude-code/f6-e8fac5a8d6-0.json", 64_000, 1.6),
    Case("entire-claude-code/18-4069756ffc-0-postcompact.json", 32_000, 0.7),
]


@requires_shared
@pytest.mark.timeout(300)
@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("case", cover(SAMPLE, lambda case: (case.window,), strength=1), ids=str)
async def test_a_real_session_in_another_format_is_answered_to_its_end(case: Case, dialect: Dialect) -> None:
    await play(case, Shape(dialect=dialect, max_tokens=4_096, stream=True))
