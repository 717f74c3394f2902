import json

from gateway.remembered_items import RememberedItems
from gateway.wire.formats import CHAT, RESPONSES
from gateway.wire.sse import Event

_FIRST = b'{"model":"m","input":"first"}'


def answer(memory: RememberedItems, body: bytes, name: str, tenant: str = "t", text: str = "said") -> bytes:
    """One exchange; the body as it was understood."""
    item = {"type": "message", "id": f"msg_{name}", "role": "assistant", "content": text}
    response = {"object": "response", "id": name, "status": "completed", "output": [item]}
    writing = memory.write_out(tenant, RESPONSES, body)
    assert writing.note is not None
    writing.note(Event("", json.dumps(response).encode()))
    return writing.plain


def go_on(name: str) -> bytes:
    return json.dumps(
        {"model": "m", "previous_response_id": name, "input": [{"role": "user", "content": "on"}]}
    ).encode()


def read_input(body: bytes) -> list[object]:
    return [item.get("content") for item in json.loads(body)["input"]]


def test_a_chain_of_answers_is_written_out_from_its_beginning() -> None:
    memory = RememberedItems(1 << 20)
    answer(memory, _FIRST, "a")
    answer(memory, go_on("a"), "b", text="said again")
    assert read_input(memory.write_out("t", RESPONSES, go_on("b")).plain) == [
        "first",
        "said",
        "on",
        "said again",
        "on",
    ]
    # A fork from the first answer.
    assert read_input(memory.write_out("t", RESPONSES, go_on("a")).plain) == ["first", "said", "on"]


def test_single_items_are_known_by_their_ids() -> None:
    memory = RememberedItems(1 << 20)
    answer(memory, _FIRST, "a")
    body = b'{"input":[{"type":"item_reference","id":"msg_a"}]}'
    assert read_input(memory.write_out("t", RESPONSES, body).plain) == ["said"]


def test_nothing_of_one_tenant_is_known_to_another() -> None:
    memory = RememberedItems(1 << 20)
    answer(memory, _FIRST, "a")
    for body in (go_on("a"), b'{"input":[{"type":"item_reference","id":"msg_a"}]}'):
        writing = memory.write_out("u", RESPONSES, body)
        assert writing.plain is body and writing.note is None


def test_what_had_to_make_room_breaks_the_chain_and_costs_nothing_else() -> None:
    memory = RememberedItems(6_000)
    answer(memory, _FIRST, "a")
    for number in range(10):
        answer(memory, _FIRST, f"other-{number}")
    body = go_on("a")
    assert memory.write_out("t", RESPONSES, body).plain is body


def test_large_bodies_do_not_push_small_ones_out() -> None:
    memory = RememberedItems(3 << 18)
    answer(memory, _FIRST, "a")
    for number in range(10):
        answer(memory, json.dumps({"input": "x" * 200_000}).encode(), f"large-{number}")
    assert read_input(memory.write_out("t", RESPONSES, go_on("a")).plain) == ["first", "said", "on"]


def test_a_circle_of_names_ends() -> None:
    memory = RememberedItems(1 << 20)
    answer(memory, _FIRST, "a")
    answer(memory, go_on("a"), "b")
    answer(memory, go_on("b"), "a")
    body = go_on("a")
    assert memory.write_out("t", RESPONSES, body).plain is body


def test_a_format_that_names_nothing_costs_nothing() -> None:
    body = b'{"messages":[]}'
    writing = RememberedItems(1 << 20).write_out("t", CHAT, body)
    assert writing.plain is body and writing.note is None
