import json

import pytest

from gateway.core.session.written_calls import (
    WrittenCall,
    begins_anew,
    find_written_calls,
    find_written_results,
    without_results,
)

_BLOCK = "<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE"


def _call(tool: str, *, needs_result: bool = True, **fields: str) -> WrittenCall:
    return WrittenCall(tool, json.dumps(fields), needs_result)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (
            "It.\n<write_to_file>\n<path>a.xml</path>\n<content>\n<path>x</path>\n</content>\n</write_to_file>",
            [_call("write_to_file", path="a.xml", content="<path>x</path>\n")],
        ),
        (
            f"<replace_in_file>\n<path>a</path>\n<diff>\n{_BLOCK}\n</diff>\n</replace_in_file>",
            [_call("replace_in_file", path="a", diff=f"{_BLOCK}\n")],
        ),
        (
            "<execute_command>\n<command>ls</command>\n</execute_command>",
            [_call("execute_command", command="ls")],
        ),
        ("Use `<execute_command>` for that.", []),
        ("<execute_command>\n<command>ls</command>", []),
        (
            f"a/b.py\n```python\n{_BLOCK}\n```\n\n{_BLOCK}\n",
            [_call("replace_in_file", needs_result=False, path="a/b.py", diff=_BLOCK)] * 2,
        ),
        (f"No name here at all\n{_BLOCK}", []),
        ("SEARCH and REPLACE are words.", []),
    ],
)
def test_calls_in_a_text(text: str, calls: list[WrittenCall]) -> None:
    assert list(find_written_calls(text)) == calls


def test_results_in_the_next_message_of_the_user() -> None:
    run, edit = _call("execute_command", command="ls"), _call("replace_in_file", needs_result=False)
    told = "[execute_command for 'ls'] Result:\nCommand executed."
    assert find_written_results(told, [run]) == ["Command executed."]
    assert find_written_results("Why did you stop?", [run]) == [None]
    assert find_written_results("Thanks. Now the failing test.", [edit]) == [""]
    assert find_written_results("# 1 SEARCH/REPLACE block failed to match!\n", [edit]) == [None]


def test_each_result_answers_one_call_of_its_tool() -> None:
    run, read = _call("execute_command", command="ls"), _call("read_file", path="a")
    told = (
        "[read_file for 'a'] Result:\nx\n[execute_command for 'ls'] Result:\ny\n"
        "[read_file for 'b'] Result:\nz"
    )
    assert find_written_results(told, [run, read, read, read]) == ["y\n", "x\n", "z", None]


def test_what_the_user_wrote_beside_results() -> None:
    assert without_results("Fix it.") == "Fix it."
    assert without_results("[read_file for 'a'] Result:\nx") == ""
    told = "[execute_command for 'ls'] Result:\nThe user denied it.\n<feedback>\nUse find.\n</feedback>"
    assert without_results(told) == "Use find."
    assert begins_anew("I switched to a new code base. Please don't consider the above files")


@pytest.mark.parametrize(
    "hostile",
    [
        "<read_file>",
        "<<<<<<< SEARCH\n",
        ">>>>>>> REPLACE\nSEARCH",
        "[read_file] Result:",
        "[read_file for '",
        "<feedback>",
        "<feedback>\n<user_message>\n",
    ],
)
def test_a_megabyte_of_anything_is_read(hostile: str) -> None:
    text = hostile * (1_000_000 // len(hostile))
    assert find_written_calls(text) == ()
    without_results(f"[read_file] Result:\n{text}")
    assert len(find_written_results(text, [_call("read_file")] * 50)) == 50
