"""The scripted model: so many calls, a last word, and the next turn."""

from pathlib import Path

from tests.agents.errand import REPORT, Errand, Size
from tests.toy.reply import Reply

_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
_ASKED = {"tools": [{"type": "function", "function": {"name": "read_note", "parameters": _SCHEMA}}]}
_SIZE = Size(turns=2, steps=5, file_tokens=100, reply_tokens=20)


def _take_turn(errand: Errand) -> list[Reply]:
    return [errand.reply(_ASKED) for _ in range(errand.size.steps + 1)]


def test_each_turn_calls_tools_and_ends_with_its_own_last_words(tmp_path: Path) -> None:
    errand = Errand(tmp_path, _SIZE)
    for turn in range(_SIZE.turns):
        *steps, end = _take_turn(errand)
        assert [len(reply.tool_calls) for reply in steps] == [1, 1, 1, 1, 2]
        assert (end.text, end.tool_calls) == (errand.goodbye(turn), ())


def test_every_file_that_is_asked_for_is_there_and_every_call_has_its_own_id(tmp_path: Path) -> None:
    errand = Errand(tmp_path, _SIZE)
    errand.write_notes()
    calls = [call for _ in range(_SIZE.turns) for reply in _take_turn(errand) for call in reply.tool_calls]
    assert len({call.id for call in calls}) == len(calls)
    written = {str(path) for path in tmp_path.iterdir()}
    assert all(any(path in call.arguments for path in written) for call in calls)


def test_the_facts_are_the_task_and_those_of_the_notes_that_were_read(tmp_path: Path) -> None:
    errand = Errand(tmp_path, _SIZE)
    errand.write_notes()
    assert errand.facts == (errand.task,)
    _take_turn(errand)
    read = [tmp_path / f"note_{number:03}.txt" for number in range(_SIZE.steps + 1)]
    assert errand.facts == (errand.task, *(path.read_text("utf-8").split("\n")[0] for path in read))


def test_a_call_without_tools_is_a_side_call_and_does_not_count(tmp_path: Path) -> None:
    errand, quiet = Errand(tmp_path, _SIZE), Errand(tmp_path, _SIZE)
    assert errand.is_side_call({"messages": []})
    assert errand.reply({"messages": []}).tool_calls == ()
    assert _take_turn(errand) == _take_turn(quiet)


def test_a_request_that_continues_a_thread_is_no_side_call(tmp_path: Path) -> None:
    errand = Errand(tmp_path, _SIZE)
    assert not errand.is_side_call({"messages": [], "thread": {"type": "continue"}})


def test_a_client_without_tools_is_given_a_whole_file_each_turn(tmp_path: Path) -> None:
    errand = Errand(tmp_path, Size(turns=2, steps=0, file_tokens=100, reply_tokens=20))
    assert not errand.is_side_call({"messages": []})
    for turn in range(2):
        text = errand.reply({"messages": []}).text or ""
        assert f"\n{REPORT}\n```\n" in text
        assert text.endswith(errand.goodbye(turn))


def test_a_client_with_a_last_command_gets_the_last_words_in_it(tmp_path: Path) -> None:
    errand = Errand(tmp_path, _SIZE, "echo DONE")
    (call,) = _take_turn(errand)[-1].tool_calls
    assert f"echo DONE && echo {errand.goodbye(0)}" in call.arguments
