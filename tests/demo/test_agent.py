"""The demo's agent, straight at its model."""

from gateway.demo.agent import FILES, find_missing, play, read_file
from gateway.demo.stand_in import StandIn


async def test_it_reads_every_file_if_the_window_is_large_enough() -> None:
    async with StandIn(100_000) as model:
        turns = [turn async for turn in play(model.base_url)]
    assert len(turns) == FILES + 1
    assert {turn.status for turn in turns} == {200}
    assert find_missing(turns[-1].text) == []
    assert [turn.messages for turn in turns] == [2 + 2 * number for number in range(FILES + 1)]


async def test_it_ends_with_the_first_error() -> None:
    async with StandIn(2_000) as model:
        turns = [turn async for turn in play(model.base_url)]
    assert [turn.status for turn in turns[-2:]] == [200, 400]
    assert "maximum context length" in turns[-1].text


def test_each_file_names_the_next_one_and_has_a_finding() -> None:
    texts = [read_file(f"src/part_{number:02}.py") for number in range(1, FILES + 1)]
    assert ["Next file: " in text for text in texts] == [True] * (FILES - 1) + [False]
    assert find_missing("".join(texts)) == []
    assert len(find_missing(texts[0])) == FILES - 1
