from gateway.originals.origins import OriginFinder
from gateway.originals.removed import Origin
from tests.builders.chat import JSON, read, render


def call(identity: str, tool: str, arguments: str) -> JSON:
    return {"id": identity, "type": "function", "function": {"name": tool, "arguments": arguments}}


def result(identity: str) -> JSON:
    return {"role": "tool", "tool_call_id": identity, "content": "done"}


def test_a_result_is_of_the_nearest_call_with_its_id() -> None:
    messages: list[JSON] = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "tool_calls": [call("1", "read", '{"path": "old.py"}')]},
        result("1"),
        {
            "role": "assistant",
            "tool_calls": [
                call("1", "edit", '{"file_path": "new.py", "text": "x"}'),
                call("2", "bash", "ls"),
            ],
        },
        result("1"),
        result("2"),
        result("3"),
    ]
    finder = OriginFinder(read(render(messages)))
    found = [finder.find(position) for position in range(len(messages))]
    assert found[2] == (Origin("read", "old.py"),)
    assert found[4:] == [(Origin("edit", "new.py"),), (Origin("bash", ""),), (Origin(),)]
    assert found[:2] == [(), ()] and found[3] == ()
