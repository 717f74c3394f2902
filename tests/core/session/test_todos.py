import json

import pytest

from gateway.core.session.todos import TodoBoard
from gateway.core.session.work import OpenTodo


def _item(text: str, status: str, key: str = "content") -> dict[str, str]:
    return {key: text, "status": status}


_DOING, _OPEN = OpenTodo(text="b", is_in_progress=True), OpenTodo(text="c")


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("TodoWrite", {"todos": [_item("a", "completed"), _item("b", "in_progress"), _item("c", "pending")]}),
        ("todowrite", {"todos": [_item("a", "cancelled"), _item("b", "in_progress"), _item("c", "pending")]}),
        (
            "write_todos",
            {"todos": [_item("b", "in_progress", "description"), _item("c", "pending", "description")]},
        ),
        (
            "update_plan",
            {"explanation": "x", "plan": [_item("b", "in_progress", "step"), _item("c", "pending", "step")]},
        ),
        ("update_todo_list", {"todos": "[x] a\n[-] b\n[ ] c"}),
    ],
)
def test_lists_of_several_agents(tool: str, arguments: dict[str, object]) -> None:
    board = TodoBoard()
    board.read(tool, json.dumps(arguments), "ok")
    assert board.open == (_DOING, _OPEN)


def test_an_empty_list_is_a_list_and_other_calls_are_none() -> None:
    board = TodoBoard((_OPEN,))
    board.read("Bash", json.dumps({"command": "- [ ] x"}), "")
    board.read("ExitPlanMode", json.dumps({"plan": "- [ ] x"}), "")
    board.read("TodoRead", json.dumps({}), "")
    assert board.open == (_OPEN,)
    board.read("TodoWrite", json.dumps({"todos": []}), "")
    assert not board.open


def test_tasks_that_are_made_one_by_one() -> None:
    board = TodoBoard()
    board.read("TaskCreate", json.dumps({"subject": "b"}), "Task #1 created successfully: b")
    board.read("TaskCreate", json.dumps({"subject": "c"}), "Task #2 created successfully: c")
    board.read("TaskUpdate", json.dumps({"taskId": "1", "status": "in_progress"}), "Updated task #1 status")
    assert set(board.open) == {_DOING, _OPEN}
    board.read("TaskUpdate", json.dumps({"taskId": "1", "status": "completed"}), "Updated task #1 status")
    assert board.open == (_OPEN,)
