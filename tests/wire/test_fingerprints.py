"""Which changes of a message, and of a conversation, make it another one.

Stored state is found by these values.
"""

import json
from collections.abc import Sequence
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.ends import (
    PLACEHOLDERS,
    HistorySource,
    continue_history,
    find_end_key,
    find_placeholders,
    make_history_end,
)
from gateway.core.history.message import hash_beginning
from gateway.wire.body import message_key
from gateway.wire.canonical import (
    canonical_arguments,
    canonical_part,
    flatten_content,
    without_ephemeral_blocks,
)
from gateway.wire.format import Format
from gateway.wire.registry import FORMATS
from tests.builders.bodies import read_alone
from tests.builders.chat import read
from tests.builders.messages import (
    IMAGE,
    MARK,
    REMINDER,
    SERVER_CALL,
    SERVER_RESULT,
    assistant,
    result,
    text_block,
    thought,
    use,
    user,
)
from tests.decisions.builders import JSON, render, render_message, texts
from tests.examples import examples
from tests.wire.shapes import Shape, in_each_format

Pairs = Sequence[tuple[JSON, JSON]]
few = examples(20, exhaustive=40)
_FINGERPRINTS = Path(__file__).parent / "fingerprints"


@pytest.mark.parametrize("wire_format", FORMATS.values(), ids=FORMATS)
def test_fingerprints_stay_what_they_were_when_they_were_stored(wire_format: Format) -> None:
    """State on disk is found by these values: if one of them changes, stored conversations are lost."""
    body = (_FINGERPRINTS / f"{wire_format.name}.request.json").read_bytes()
    expected = json.loads((_FINGERPRINTS / f"{wire_format.name}.expected.json").read_text("utf-8"))
    received = read_alone("tenant", wire_format, body)
    conversation, envelope = received.conversation, received.body.envelope
    assert [message.fingerprint.hex() for message in conversation.leading] == expected["leading"]
    assert [link.hex() for link in conversation.chain] == expected["chain"]
    assert envelope.tools.hex() == expected["tools"]
    assert envelope.system.hex() == expected["system"]
    splits = [message.split for message in conversation.messages]
    assert [result for split in splits for result in list_parts(split)[1:]] == expected["results"]
    frames = [message.split[:32] or message.fingerprint for message in conversation.messages]
    root = sha256(b"skeleton:" + conversation.chain[0]).digest()
    chain = accumulate(frames, lambda link, frame: sha256(link + frame).digest(), initial=root)
    assert [link.hex() for link in chain] == expected["result_chain"]


def list_parts(split: bytes) -> list[str]:
    return [split[at : at + 32].hex() for at in range(0, len(split), 32)]


def fingerprint(name: str, message: object) -> bytes:
    raw = json.dumps(message, ensure_ascii=False).encode()
    return FORMATS[name].parse_message(raw, message_key(raw, b"t")).fingerprint


_USER: JSON = {"role": "user", "content": "Look."}
_CALLS: list[JSON] = [
    {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"n": 1, "p": "é"}'}},
    {"id": "b", "type": "function", "function": {"name": "skill", "arguments": "{}"}},
]
_ASSISTANT: JSON = {"role": "assistant", "content": "I look.", "tool_calls": _CALLS}
_RESULT: JSON = {"role": "tool", "tool_call_id": "a", "content": "done"}
_IMAGE: JSON = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def text_part(text: str, **fields: Any) -> JSON:
    return {"type": "text", "text": text, **fields}


def with_arguments(arguments: str) -> JSON:
    function = {**_CALLS[0]["function"], "arguments": arguments}
    return {**_ASSISTANT, "tool_calls": [{**_CALLS[0], "function": function}, _CALLS[1]]}


# Changes that real clients make between two requests of one conversation.
_SAME_IN_CHAT: list[tuple[JSON, JSON]] = [
    (_USER, {**_USER, "content": [text_part("Look.")]}),
    (_USER, {**_USER, "content": [text_part("Look.", cache_control={"type": "ephemeral"})]}),
    (_USER, {**_USER, "cache_control": {"type": "ephemeral"}}),
    (_USER, {**_USER, "content": [text_part("Lo"), text_part("ok.")]}),
    (_USER, {**_USER, "id": "msg_1", "status": "completed"}),
    (_USER, {"content": "Look.", "role": "user"}),
    (_USER, {**_USER, "content": [text_part("<system-reminder>x</system-reminder>"), text_part("Look.")]}),
    (_USER, {**_USER, "content": "Look.\n<environment_details>Monday</environment_details>"}),
    (_USER, {**_USER, "name": None}),
    ({**_USER, "content": [_IMAGE]}, {**_USER, "content": [{**_IMAGE, "cache_control": {"ttl": "1h"}}]}),
    ({"role": "system", "content": "x"}, {"role": "developer", "content": "x"}),
    (_ASSISTANT, {**_ASSISTANT, "reasoning_content": "hm", "reasoning_details": [{"text": "hm"}]}),
    (_ASSISTANT, {**_ASSISTANT, "reasoning": "hm", "thinking_blocks": [{}]}),
    (_ASSISTANT, {**_ASSISTANT, "refusal": None, "annotations": [], "logprobs": None}),
    (_ASSISTANT, {**_ASSISTANT, "name": "coder", "provider_specific_fields": {"x": 1}}),
    (_ASSISTANT, {**_ASSISTANT, "function_call": None, "audio": None}),
    (_ASSISTANT, with_arguments('{"p":"\\u00e9","n":1}')),
    (_ASSISTANT, with_arguments('{\n  "n": 1,\n  "p": "é"\n}')),
    ({**_ASSISTANT, "content": None}, {**_ASSISTANT, "content": ""}),
    ({**_ASSISTANT, "content": None}, {"role": "assistant", "tool_calls": _CALLS}),
    ({**_ASSISTANT, "content": ""}, {**_ASSISTANT, "content": []}),
    ({"role": "assistant", "content": "x"}, {"role": "assistant", "content": "x", "tool_calls": None}),
    ({"role": "assistant", "content": "x"}, {"role": "assistant", "content": "x", "tool_calls": []}),
    (_RESULT, {**_RESULT, "name": "look"}),
    (_RESULT, {**_RESULT, "content": [text_part("done")]}),
    (_RESULT, {**_RESULT, "content": [text_part("done", cache_control={"type": "ephemeral"})]}),
]
_OTHER_IN_CHAT: list[tuple[JSON, JSON]] = [
    *((_USER, {**_USER, "content": "look."}), (_USER, {**_USER, "content": "Look, please."})),
    *((_USER, {**_USER, "role": "assistant"}), (_USER, {**_USER, "role": "wizard"})),
    *(({**_USER, "role": "wizard"}, {**_USER, "role": "witch"}), (_USER, {**_USER, "name": "Ann"})),
    *((_USER, {**_USER, "unknown": 1}), (_USER, {**_USER, "content": [text_part("Look."), _IMAGE]})),
    (_USER, {**_USER, "content": [text_part("Look."), {"type": "unknown"}]}),
    ({**_USER, "content": [_IMAGE]}, {**_USER, "content": [{**_IMAGE, "image_url": {"url": "data:,B"}}]}),
    (_USER, {**_USER, "content": "<b>x</b>Look."}),
    (_ASSISTANT, {**_ASSISTANT, "tool_calls": _CALLS[:1]}),
    (_ASSISTANT, {**_ASSISTANT, "tool_calls": _CALLS[::-1]}),
    (_ASSISTANT, {**_ASSISTANT, "tool_calls": [{**_CALLS[0], "id": "c"}, _CALLS[1]]}),
    (_ASSISTANT, with_arguments('{"n": 2, "p": "é"}')),
    *((_ASSISTANT, with_arguments('{"n": "1", "p": "é"}')), (_ASSISTANT, {**_ASSISTANT, "refusal": "no"})),
    (_ASSISTANT, {**_ASSISTANT, "function_call": {"name": "f", "arguments": "{}"}}),
    (_ASSISTANT, {**_ASSISTANT, "content": "<system-reminder>x</system-reminder>I look."}),
    *((_RESULT, {**_RESULT, "tool_call_id": "b"}), (_RESULT, {**_RESULT, "tool_call_id": ""})),
    (_RESULT, {**_RESULT, "content": "don"}),
    (_RESULT, {**_RESULT, "content": "<system-reminder>x</system-reminder>done"}),
    (
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "new", "do": {"x": 1}}]},
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "new", "do": {"x": 2}}]},
    ),
    (
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {"input": "x"}}]},
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {"input": "y"}}]},
    ),
]
_SAME_IN_MESSAGES: list[tuple[JSON, JSON]] = [
    ({"role": "user", "content": "Look."}, user(text_block("Look."))),
    (user(text_block("Look.")), user(text_block("Look.", **MARK))),
    (user(text_block("Look.")), user(text_block("Lo"), text_block("ok."))),
    (user(text_block("Look.")), user(text_block(f"{REMINDER}\n"), text_block("Look."))),
    (user(text_block("Look.")), user(text_block(f"Look.\n{REMINDER}"))),
    (user(text_block("Look.")), {**user(text_block("Look.")), "id": "m", "type": "message"}),
    (user(text_block("Look.")), user(text_block("Look.", citations=None))),
    (user(result()), user(result(**MARK))),
    (user(result()), user(result(content=[text_block("done")]))),
    (user(result()), user(result(content=[text_block("done", **MARK)]))),
    (user(result()), user(result(is_error=False))),
    (user(result()), user(result(), text_block(REMINDER))),
    (user(IMAGE), user({**IMAGE, **MARK})),
    (assistant(use(a=1, b="é")), assistant({**use(b="é", a=1), **MARK})),
    (assistant(use()), assistant({**use(), "caller": {"type": "direct"}})),
    (assistant(text_block("a")), assistant(thought(), text_block("a"))),
    (assistant(text_block("a")), assistant({"type": "redacted_thinking", "data": "x"}, text_block("a"))),
    (assistant(text_block("a")), {**assistant(text_block("a")), "stop_reason": "end_turn", "usage": {}}),
    (assistant(text_block("a"), use()), assistant(text_block("a"), text_block(""), use())),
]
_OTHER_IN_MESSAGES: list[tuple[JSON, JSON]] = [
    (user(text_block("Look.")), user(text_block("look."))),
    (user(text_block("Look.")), assistant(text_block("Look."))),
    (user(text_block("Look.")), user(text_block("Look."), IMAGE)),
    (user(text_block("Look.")), {**user(text_block("Look.")), "unknown": 1}),
    (user(IMAGE), user({**IMAGE, "source": {"type": "url", "url": "u"}})),
    *((user(result()), user(result("b"))), (user(result()), user(result(content="don")))),
    (user(result()), user(result(is_error=True))),
    (user(result()), user(result(content=[text_block("done"), IMAGE]))),
    (user(result()), user(result(), text_block("Go on."))),
    (user(result()), user(result(content=f"done{REMINDER}"))),
    (user(result("a"), result("b", "")), user(result("b"), result("a", ""))),
    (user(result(content="ab")), user(result(content="a"), text_block("b"))),
    *((assistant(use(a=1)), assistant(use(a=2))), (assistant(use(a=1)), assistant(use(a="1")))),
    *((assistant(use()), assistant(use("b"))), (assistant(use()), assistant(use(tool="peek")))),
    (assistant(use("a"), use("b")), assistant(use("b"), use("a"))),
    (assistant(text_block("a")), assistant(text_block(f"{REMINDER}a"))),
    (assistant(SERVER_CALL), assistant({**SERVER_CALL, "input": {"query": "r"}})),
    (assistant(SERVER_CALL), assistant(SERVER_CALL, SERVER_RESULT)),
    (assistant({"type": "new", "x": 1}), assistant({"type": "new", "x": 2})),
]
_FUNCTION_CALL: JSON = {
    "type": "function_call",
    "call_id": "a",
    "name": "look",
    "arguments": '{"b": 1, "a": 2}',
}
_FUNCTION_OUTPUT: JSON = {"type": "function_call_output", "call_id": "a", "output": "found"}
_SAME_IN_RESPONSES: Sequence[tuple[JSON, JSON]] = [
    (_USER, {"type": "message", "id": "msg_1", "status": "completed", **_USER}),
    (_USER, {"role": "user", "content": [{"type": "input_text", "text": "Look."}]}),
    (_USER, {"role": "user", "content": "<system-reminder>x</system-reminder>\nLook."}),
    (_FUNCTION_CALL, {**_FUNCTION_CALL, "id": "fc_1", "status": "completed", "arguments": '{"a":2,"b":1}'}),
    (
        _FUNCTION_OUTPUT,
        {**_FUNCTION_OUTPUT, "output": [{"type": "input_text", "text": "found"}], "id": "fco_1"},
    ),
    (
        {"role": "assistant", "content": "Done."},
        {
            "type": "message",
            "role": "assistant",
            "phase": "final_answer",
            "content": [{"type": "output_text", "text": "Done.", "annotations": [], "logprobs": []}],
        },
    ),
    (
        {"type": "web_search_call", "action": {"a": 1, "b": 2}},
        {"action": {"b": 2, "a": 1}, "type": "web_search_call"},
    ),
]
_OTHER_IN_RESPONSES: Sequence[tuple[JSON, JSON]] = [
    (_USER, {**_USER, "role": "assistant"}),
    (_USER, {**_USER, "content": "look."}),
    (_FUNCTION_CALL, {**_FUNCTION_CALL, "call_id": "b"}),
    (_FUNCTION_CALL, {**_FUNCTION_CALL, "arguments": '{"a":2,"b":2}'}),
    (_FUNCTION_CALL, {**_FUNCTION_CALL, "namespace": "n"}),
    (_FUNCTION_CALL, {**_FUNCTION_CALL, "type": "custom_tool_call"}),
    (_FUNCTION_OUTPUT, {**_FUNCTION_OUTPUT, "output": "lost"}),
    (
        {"type": "custom_tool_call", "call_id": "a", "input": "x"},
        {"type": "custom_tool_call", "call_id": "a", "input": "y"},
    ),
    ({"type": "item_reference", "id": "a"}, {"type": "item_reference", "id": "b"}),
    ({"type": "compaction", "encrypted_content": "a"}, {"type": "compaction", "encrypted_content": "b"}),
    ({"type": "of_tomorrow", "x": 1}, {"type": "of_tomorrow", "x": 2}),
]


def list_pairs(chat: Pairs, messages: Pairs, responses: Pairs) -> list[tuple[str, JSON, JSON]]:
    tables = {"chat": chat, "messages": messages, "responses": responses}
    return [(name, one, other) for name, pairs in tables.items() for one, other in pairs]


@pytest.mark.parametrize(
    ("name", "one", "other"), list_pairs(_SAME_IN_CHAT, _SAME_IN_MESSAGES, _SAME_IN_RESPONSES)
)
def test_changes_that_clients_make_do_not_change_the_fingerprint(name: str, one: JSON, other: JSON) -> None:
    assert fingerprint(name, one) == fingerprint(name, other)


@pytest.mark.parametrize(
    ("name", "one", "other"), list_pairs(_OTHER_IN_CHAT, _OTHER_IN_MESSAGES, _OTHER_IN_RESPONSES)
)
def test_other_content_has_another_fingerprint(name: str, one: JSON, other: JSON) -> None:
    assert fingerprint(name, one) != fingerprint(name, other)


@few
@in_each_format
@given(data=st.data())
def test_the_spelling_of_a_message_changes_only_its_key(shape: Shape, data: st.DataObject) -> None:
    style = data.draw(st.integers(0, 3))
    for message in data.draw(shape.conversations(min_turns=1)):
        usual, other = render_message(message), render_message(message, style)
        one, two = (shape.wire.parse_message(raw, message_key(raw, b"t")) for raw in (usual, other))
        assert one._replace(key=b"", size_bytes=0) == two._replace(key=b"", size_bytes=0)
        assert (one.key == two.key) == (usual == other)


@given(texts(), texts())
def test_results_share_a_fingerprint_only_if_they_are_equal(one: str, other: str) -> None:
    found = {fingerprint("chat", {**_RESULT, "content": text}) for text in (one, other)}
    assert len(found) == len({one, other})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chat", {"role": "user", "content": "So it begins."}),
        (
            "chat",
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "So it begins."}]},
        ),
        ("messages", {"role": "assistant", "content": [{"type": "text", "text": "So it begins."}]}),
        (
            "messages",
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a", "content": "So it begins."}],
            },
        ),
        ("responses", {"role": "user", "content": "So it begins."}),
        ("responses", {"type": "function_call_output", "call_id": "a", "output": "So it begins."}),
    ],
)
def test_a_message_is_known_by_how_it_begins(name: str, message: dict[str, object]) -> None:
    assert FORMATS[name].parse_message(json.dumps(message).encode(), b"").beginning == hash_beginning(
        "So it begins."
    )


_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
_TAGS = ("system-reminder", "system_reminder", "environment_details", "environment_context", "info-msg")


@given(st.dictionaries(st.text(max_size=3), _VALUES, max_size=4), st.sampled_from([None, 2]), st.booleans())
def test_spaces_order_and_escapes_of_arguments_do_not_matter(
    value: dict[str, Any], indent: int | None, is_ascii: bool
) -> None:
    turned = json.dumps(dict(reversed(value.items())), indent=indent, ensure_ascii=is_ascii)
    assert canonical_arguments(turned) == canonical_arguments(json.dumps(value))


@given(_VALUES, _VALUES)
def test_different_arguments_have_different_forms(one: Any, other: Any) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (canonical_arguments(json.dumps(one)) == canonical_arguments(json.dumps(other))) == same


@pytest.mark.parametrize("arguments", ["", "{", '{"a":', "not json", "\ud800", "NaN", "1e999"])
def test_arguments_that_are_not_json_are_used_as_they_are(arguments: str) -> None:
    assert canonical_arguments(arguments) == arguments.encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("tag", _TAGS)
def test_ephemeral_blocks_are_left_out(tag: str) -> None:
    block = f"<{tag}>\nnow: Monday\n</{tag}>"
    for text in (f"Do it.{block}", f"{block}\nDo it.", f"{block}Do it.{block}"):
        assert without_ephemeral_blocks(text) == "Do it."


@pytest.mark.parametrize(
    "text",
    [
        *("a < b", "<b>bold</b>", "<system-reminder>never closed", "</system-reminder>"),
        *("<system-reminder >x</system-reminder >", "<SYSTEM-REMINDER>x</SYSTEM-REMINDER>"),
        *("<system-reminder-2>x</system-reminder-2>", " spaces around < stay "),
    ],
)
def test_all_other_tags_are_text(text: str) -> None:
    assert without_ephemeral_blocks(text) == text


def test_fields_that_clients_add_to_a_part_do_not_matter() -> None:
    image: dict[str, object] = {"type": "image_url", "image_url": {"url": "data:" + "A" * 999}}
    assert canonical_part({**image, "cache_control": {"type": "ephemeral"}, "id": "x"}) == canonical_part(
        image
    )
    assert canonical_part({**image, "image_url": {"url": "data:" + "A" * 998 + "B"}}) != canonical_part(image)
    assert len(canonical_part(image)) == 32


_CLEARED = find_placeholders("")


_SOURCE = HistorySource(b"s", is_named=False)


def fits(before: Sequence[JSON], now: Sequence[JSON]) -> bool:
    """Is a request of these messages recognized behind those before, and a reply?"""
    known = read(render(before)).conversation
    key = find_end_key(_SOURCE, known)
    received = read(render([*now, {"role": "assistant", "content": "Done."}], 1)).conversation
    end = len(received.messages) - 1
    assert key is not None
    record = make_history_end("t", key, known)
    return continue_history(record, received, end, _SOURCE, _CLEARED) is not None


def text_of(message: JSON) -> str:
    return "".join(flatten_content(message.get("content")).texts)


def list_changes(message: JSON) -> list[list[JSON]]:
    """Other messages in place of this one; none is this one with a cleared result."""
    text = text_of(message)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,BBBB"}}
    changes: list[list[JSON]] = [
        *([], [message, message], [{**message, "content": f"{text}, changed"}]),
        [{**message, "content": [{"type": "text", "text": text}, image]}],
        [{**message, "content": f"{PLACEHOLDERS[0]} "}],
        [{**message, "content": [{"type": "text", "text": PLACEHOLDERS[0]}, image]}],
        [{**message, "x-unknown": 1}],
    ]
    if message["role"] == "tool":
        changes.append([{**message, "tool_call_id": "look:9"}])
    else:
        changes.append([{**message, "content": PLACEHOLDERS[0]}])
    for call in message.get("tool_calls", ())[:1]:
        for function in ({"name": "other"}, {"arguments": "{}"}):
            changed = {**call, "function": {**call["function"], **function}}
            changes.append([{**message, "tool_calls": [changed, *message["tool_calls"][1:]]}])
    return changes


_GROUP: list[JSON] = [
    {"role": "user", "content": "Fix it."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "look", "arguments": "[1]"}}],
    },
    {"role": "tool", "tool_call_id": "a", "content": "text"},
    {"role": "user", "content": "More."},
]


@pytest.mark.parametrize("at", range(len(_GROUP)))
def test_no_other_field_may_change_with_a_cleared_result(at: int) -> None:
    cleared = [{**one, "content": PLACEHOLDERS[0]} if one["role"] == "tool" else one for one in _GROUP]
    assert fits(_GROUP, cleared)
    for change in list_changes(cleared[at]):
        assert not fits(_GROUP, [*cleared[:at], *change, *cleared[at + 1 :]]), change
