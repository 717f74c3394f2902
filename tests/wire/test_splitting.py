"""A request body, split by its bytes: the envelope around its messages, and where each message is."""

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import BeyondBounds, Unreadable
from gateway.wire.body import (
    UNBOUNDED,
    BodyBounds,
    Envelope,
    RequestBody,
    check_depth,
    check_values,
    find_added,
    mend_surrogates,
    message_key,
    parse_added,
    split_fields,
    split_items,
    split_request,
)
from gateway.wire.registry import CHAT, FORMATS
from tests.builders.messages import MARK, text_block
from tests.decisions.builders import JSON
from tests.examples import examples
from tests.shared_data import SHARED, requires_shared
from tests.wire.shapes import SHAPES, Shape, in_each_format

few = examples(20, exhaustive=40)
_PIECES = st.sampled_from(["\ud83d", "\ude00", "\U0001f600", "\\", '"', "u", "\\ud83d", "\n", "x"])
_TEXTS = st.lists(_PIECES, max_size=12).map("".join) | st.text(st.characters(exclude_categories=()))


@given(_TEXTS)
def test_a_mended_text_keeps_its_length_and_can_be_parsed(text: str) -> None:
    raw = json.dumps(text).encode()
    mended = mend_surrogates(raw)
    assert len(mended) == len(raw)
    # json joins two halves that make a pair.
    assert json.loads(mended) == "".join(map(to_private_use, json.loads(raw)))
    assert mend_surrogates(mended) is mended


def to_private_use(character: str) -> str:
    is_half = "\ud800" <= character <= "\udfff"
    return chr(ord(character) - 0xD800 + 0xE000) if is_half else character


def test_an_escaped_backslash_does_not_begin_an_escape() -> None:
    raw = rb'"\\ud83d \\\ud83d \ud83d\ude00 \uD83D\u0041"'
    assert mend_surrogates(raw) == rb'"\\ud83d \\\ue03d \ud83d\ude00 \ue03D\u0041"'


@given(_TEXTS, _TEXTS)
def test_a_body_with_halves_is_understood_and_not_changed(first: str, second: str) -> None:
    messages = [{"role": "user", "content": first}]
    before = CHAT.parse_body(json.dumps({"model": "m", "messages": messages}).encode())
    messages.append({"role": "tool", "tool_call_id": "a", "content": second})
    data = json.dumps({"model": "m", "messages": messages}).encode()
    place = find_added(before, 1, data)
    assert place is not None
    body = parse_added(before, 1, data, place, UNBOUNDED)
    assert body.places == CHAT.parse_body(data).places
    assert body.data is data
    for index, message in enumerate(messages):
        raw = body.raw(index)
        assert json.loads(raw) == json.loads(json.dumps(message))
        facts = CHAT.parse_message(raw, message_key(raw, b"t"))
        assert facts.role == message["role"]
        assert len(CHAT.parse_entry(raw).text) == len(json.loads(mend_surrogates(raw))["content"])


_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=9)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
_OBJECTS = st.dictionaries(st.text(max_size=9), _VALUES, max_size=4)
_INDENTS = st.sampled_from([None, 0, 2, "\t"])


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """An object with a list of messages somewhere in it."""
    fields = [(key, value) for key, value in draw(_OBJECTS).items() if key != "messages"]
    at = draw(st.integers(0, len(fields)))
    items = draw(st.lists(_VALUES, max_size=4))
    return dict([*fields[:at], ("messages", items), *fields[at:]])


def render_document(document: object, indent: int | str | None, is_ascii: bool) -> bytes:
    return json.dumps(document, indent=indent, ensure_ascii=is_ascii).encode()


@given(documents(), _INDENTS, st.booleans())
def test_every_place_holds_exactly_its_value(
    document: dict[str, Any], indent: int | str | None, is_ascii: bool
) -> None:
    data = b" \n" + render_document(document, indent, is_ascii) + b"\r\n"
    fields = split_fields(data, "messages")
    found = {key: json.loads(data[place.start : place.end]) for key, place in fields.places.items()}
    assert found == document
    assert [json.loads(data[item.start : item.end]) for item in fields.items] == document["messages"]
    assert list(fields.places) == list(document)
    assert {key: json.loads(raw) for key, raw in fields.values.items()} == {
        key: value for key, value in document.items() if key != "messages"
    }


@given(documents(), st.data())
def test_a_repeated_key_is_unreadable_in_every_place(document: dict[str, Any], data: st.DataObject) -> None:
    pairs = list(document.items())
    key = data.draw(st.sampled_from(sorted(document)))
    value = data.draw(_VALUES) if key != "messages" else []
    pairs.insert(data.draw(st.integers(0, len(pairs))), (key, value))
    body = "{" + ",".join(f"{json.dumps(name)}:{json.dumps(item)}" for name, item in pairs) + "}"
    with pytest.raises(Unreadable):
        split_fields(body.encode(), "messages")


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[],"messages":[]}',
        b'{"messages":[1],"a":1,"messages":[1]}',
        b'{"\\u006dessages":[1],"messages":[1]}',
        # The last value is as long as a part of the first, so a careless walk would skip the repetition.
        b'{"a":{"q":0,"b":2},"b":2,"messages":[],"a":123456}',
        b'{"a":{"q":0,"b":2},"messages":[],"b":2,"a":123456}',
        b'{"messages":{"q":0,"b":2},"b":2,"messages":[1234]}',
        b'{"messages":[{},{}],"messages":[{}]}',
    ],
)
def test_a_hidden_repetition_of_a_key_is_unreadable(body: bytes) -> None:
    with pytest.raises(Unreadable):
        split_fields(body, "messages")


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b" ", b"[]", b"null", b'"messages"', b"{}", b'{"messages":null}', b'{"messages":{}}'),
        *(b'{"messages":"[]"}', b'{"messages":[]', b'{"messages":[]}}', b'{"messages":[],}'),
        *(b'{"messages":[1,]}', b'{"messages":[NaN]}', b'{"messages":[],"x":NaN}'),
        *(b'{"messages":[],"x":Infinity}', b'{"messages":[],"\xff":1}', b'\xef\xbb\xbf{"messages":[]}'),
        *(b'{"messages":' + b"[" * 9_999 + b"]" * 9_999 + b"}", b"{'messages':[]}"),
    ],
)
def test_anything_but_an_object_with_an_array_of_messages_is_unreadable(body: bytes) -> None:
    with pytest.raises(Unreadable):
        split_fields(body, "messages")


@pytest.mark.parametrize("inside", [b",", b" , ", b",,1", b",1,", b",1]", b"],[1", b"1", b",NaN", b", 1 2"])
def test_bytes_that_do_not_continue_an_array_are_unreadable(inside: bytes) -> None:
    with pytest.raises(Unreadable):
        split_items(inside, 0, len(inside))


@requires_shared
def test_only_valid_json_is_accepted() -> None:
    cases = json.loads((SHARED / "data" / "jsontestsuite.json").read_text("utf-8"))["cases"]
    for case in cases:
        raw = base64.b64decode(case["b64"])
        try:
            fields = split_fields(b'{"a":1,"messages":[' + raw + b'],"z":2}', "messages")
        except Unreadable:
            assert case["expect"] != "accept", case["name"]
        else:
            assert case["expect"] != "reject" or fields.items == [], case["name"]


@pytest.mark.parametrize("text", ["\\" * 3_000_000, "x" * 3_000_000, "\n" * 3_000_000, "é" * 500_000])
def test_one_half_in_a_long_text_is_mended_without_a_look_at_each_character(text: str) -> None:
    raw = json.dumps(text + "\ud800").encode()
    assert mend_surrogates(raw) == raw[:-7] + rb'\ue000"'


def test_thousands_of_halves_are_not_mended() -> None:
    raw = json.dumps("\ud800x" * 20_000).encode()
    with pytest.raises(BeyondBounds):
        mend_surrogates(raw)
    pairs = json.dumps("\U0001f600x" * 20_000).encode()
    assert mend_surrogates(pairs) is pairs


def test_long_runs_of_separators_and_escapes_are_skipped_at_once() -> None:
    spaces = b" " * 3_000_000
    body = (
        b"{"
        + spaces
        + b'"a\\\\":1,'
        + spaces
        + b'"messages":['
        + spaces
        + b"1"
        + spaces
        + b",2]"
        + spaces
        + b"}"
    )
    fields = split_fields(body, "messages")
    assert [body[item.start : item.end] for item in fields.items] == [b"1", b"2"]
    escaped = b'{"' + b"\\\\" * 3_000_000 + b'":1,"messages":[]}'
    assert len(split_fields(escaped, "messages").places) == 2


@pytest.mark.parametrize(
    ("body", "bounds"),
    [
        (b'{"messages":[1,2,3]}', {"messages": 2}),
        (b'{"a":1,"b":2,"messages":[]}', {"fields": 2}),
        (b'{"messages":[[1,2,3]]}', {"values": 1}),
    ],
)
def test_a_body_beyond_its_bounds_is_not_split(body: bytes, bounds: dict[str, int]) -> None:
    split_fields(body, "messages", replace(UNBOUNDED, **{key: value + 1 for key, value in bounds.items()}))
    with pytest.raises(BeyondBounds):
        split_fields(body, "messages", replace(UNBOUNDED, **bounds))


def make_bounds(**fields: int) -> BodyBounds:
    return BodyBounds(**({"messages": 9, "fields": 9, "values": 9, "depth": 9} | fields))


@given(st.text(alphabet='a,"[]{}\\\\', max_size=9), st.integers(1, 6))
def test_commas_and_brackets_in_texts_are_no_values(text: str, deep: int) -> None:
    raw = json.dumps([text] * 3).encode()
    check_values(raw, make_bounds(values=9))
    with pytest.raises(BeyondBounds):
        check_values(b"[1,2,3,4]" + raw, make_bounds(values=4))
    nested = b"[" * deep + raw + b"]" * deep
    check_depth(nested, make_bounds(depth=deep + 1, values=999))
    with pytest.raises(BeyondBounds):
        check_depth(nested, make_bounds(depth=deep, values=999))


@pytest.mark.parametrize("piece", [b"1,", b"{},", b'"",', b'"":1,', b"[],"])
def test_millions_of_values_are_found_out_without_an_object_for_each(piece: bytes) -> None:
    with pytest.raises(BeyondBounds, match="values"):
        check_values(b"[" + piece * 3_000_000 + b"1]", make_bounds(values=200_000))


def test_hundreds_of_thousands_of_brackets_are_found_out() -> None:
    with pytest.raises(BeyondBounds, match="nested more than 100 deep"):
        check_depth(b"[" * 400_000 + b"]" * 400_000, make_bounds(depth=100, values=250_000))
    check_depth(b"[" + b"[]" * 100_000 + b"]", make_bounds(depth=100, values=250_000))


@few
@in_each_format
@given(data=st.data())
def test_every_place_holds_its_message(shape: Shape, data: st.DataObject) -> None:
    body = data.draw(shape.bodies())
    parsed = shape.wire.parse_body(body, UNBOUNDED)
    raws = [parsed.raw(index) for index in range(len(parsed.places))]
    # In Responses, reasoning and the item behind it are one message.
    found = [item for raw in raws for item in json.loads(b"[%s]" % raw)]
    assert found == shape.values(body)
    assert parsed.data is body and body[parsed.inside_end : parsed.inside_end + 1] == b"]"


def grow(shape: Shape, before: RequestBody, keep: int, data: bytes) -> RequestBody:
    place = find_added(before, keep, data)
    assert place is not None
    return parse_added(before, keep, data, place, UNBOUNDED)


@few
@in_each_format
@given(data=st.data())
def test_a_continuation_equals_the_whole_body_split(shape: Shape, data: st.DataObject) -> None:
    frame, messages = data.draw(st.integers(0, 2)), data.draw(shape.conversations(min_turns=1))
    before = shape.wire.parse_body(shape.render(messages, frame), UNBOUNDED)
    grown = shape.render([*messages, *data.draw(st.lists(st.just(_USER), max_size=2))], frame)
    assert grow(shape, before, len(before.places), grown) == shape.wire.parse_body(grown, UNBOUNDED)


_USER: JSON = {"role": "user", "content": "Look."}


@pytest.mark.parametrize("tail", [b'],"model":"b"}', b"]}", b'],"model":"a" }', b"]"])
def test_a_body_with_another_envelope_is_not_a_continuation(tail: bytes) -> None:
    start = b'{"messages":[{"role":"user"}'
    before = CHAT.parse_body(start + b'],"model":"a"}')
    assert find_added(before, 1, start + tail) is None


def split_pairs(data: bytes) -> RequestBody:
    """In this format, an item that begins with `+` is part of the message before."""
    return split_request(
        data,
        "items",
        lambda fields: fields.make_common_envelope(),
        lambda before, after: after.startswith(b'"+'),
    )


def test_items_that_belong_together_are_one_message() -> None:
    body = split_pairs(b'{"items":["a", "+b","+c" ,"d"]}')
    assert [body.raw(index) for index in range(len(body.places))] == [b'"a", "+b","+c"', b'"d"']


def test_new_items_of_the_last_message_are_not_a_continuation() -> None:
    before = split_pairs(b'{"items":["a"]}')
    place = find_added(before, 1, b'{"items":["a","+b"]}')
    assert place is not None
    with pytest.raises(Unreadable):
        parse_added(before, 1, b'{"items":["a","+b"]}', place, UNBOUNDED)


@in_each_format
def test_two_tenants_never_share_a_key(shape: Shape) -> None:
    body = shape.render(shape.talk, 0)
    one, other = (shape.read(body, tenant).conversation for tenant in ("t", "u"))
    assert not {message.key for message in one.messages} & {message.key for message in other.messages}
    assert not set(one.chain) & set(other.chain)


def split(shape: Shape, fields: str) -> RequestBody:
    """The fields before and behind the messages, which must give the same."""
    items = b'"%s":[{"role":"user","content":"x"}]' % shape.array.encode()
    front = shape.wire.parse_body(b"{%s,%s}" % (fields.encode(), items), UNBOUNDED)
    back = shape.wire.parse_body(b"{%s,%s}\n" % (items, fields.encode()), UNBOUNDED)
    for read in (_list_raw_fields, _list_facts):
        assert read(front) == read(back)
    return back


def _list_raw_fields(body: RequestBody) -> list[bytes]:
    envelope = body.envelope
    places = (envelope.requested_slice, envelope.stream_options_slice, envelope.tools_slice)
    return [body.field(place) for place in (*places, envelope.system_slice)]


def _list_facts(body: RequestBody) -> list[object]:
    found = body.envelope
    return [found.model, found.requested_tokens, found.requested_key, found.tools, found.system]


@in_each_format
def test_the_envelope_holds_the_fields_beside_the_messages(shape: Shape) -> None:
    key = shape.wire.output_key
    body = split(shape, f'"model":"toy","stream":true,"{key}": 7 ,"tools":[{{"name":"a"}}]')
    envelope = body.envelope
    assert (envelope.model, envelope.is_streaming) == ("toy", True)
    assert envelope.wants_usage == (shape.name != "chat")
    assert (envelope.requested_tokens, envelope.requested_key) == (7, key)
    assert _list_raw_fields(body)[:3] == [b"7", b"", b'[{"name":"a"}]']
    assert envelope.tools
    assert envelope.tools != split(shape, '"tools":[{"name":"b"}]').envelope.tools
    assert not (envelope.is_partial or envelope.is_trimmed)


def test_chat_tells_whether_a_stream_reports_its_usage() -> None:
    for options, expected in (("true", True), ("false", False)):
        body = split(SHAPES["chat"], f'"stream":true,"stream_options":{{"include_usage":{options}}}')
        assert body.envelope.wants_usage is expected
        assert body.field(body.envelope.stream_options_slice) == b'{"include_usage":%s}' % options.encode()


@in_each_format
@pytest.mark.parametrize("value", ["0", "-1", "true", '"7"', "7.5", "null", "[]"])
def test_the_limit_of_the_reply_is_a_positive_whole_number(shape: Shape, value: str) -> None:
    envelope = split(shape, f'"{shape.wire.output_key}":{value}').envelope
    assert (envelope.requested_tokens, envelope.requested_slice) == (None, None)


@pytest.mark.parametrize(
    ("fields", "tokens", "key"),
    [
        ('"max_tokens":7,"max_completion_tokens":9', 9, "max_completion_tokens"),
        ('"max_tokens":7,"max_completion_tokens":null', 7, "max_tokens"),
        ('"max_completion_tokens":null', None, ""),
        ('"":7', None, ""),
    ],
)
def test_the_limit_keeps_the_key_that_the_client_uses(fields: str, tokens: int | None, key: str) -> None:
    envelope = split(SHAPES["chat"], fields).envelope
    assert (envelope.requested_tokens, envelope.requested_key) == (tokens, key)


@in_each_format
@pytest.mark.parametrize("fields", ['"stream":1,"model":7,"tools":null', '"stream":"true","tools":[ ]'])
def test_fields_of_odd_types_are_ignored(shape: Shape, fields: str) -> None:
    envelope = split(shape, fields).envelope
    assert (envelope.model, envelope.is_streaming) == ("", False)


@in_each_format
@pytest.mark.parametrize("value", ["1e400", '"\xff"'])
def test_an_invalid_envelope_field_makes_the_body_unreadable(shape: Shape, value: str) -> None:
    data = f'{{"{shape.array}":[],"model":{value}}}'.encode("latin-1")
    with pytest.raises(Unreadable):
        shape.wire.parse_body(data, UNBOUNDED)


def envelope(name: str, **fields: Any) -> Envelope:
    array = SHAPES[name].array
    return FORMATS[name].parse_body(json.dumps({array: [], **fields}).encode(), UNBOUNDED).envelope


@pytest.mark.parametrize(
    ("thinking", "least"),
    [
        ({"type": "enabled", "budget_tokens": 2_000}, 3_024),
        *(
            (odd, 0)
            for odd in (None, 1, {}, {"type": "adaptive"}, {"type": "enabled", "budget_tokens": None})
        ),
    ],
)
def test_a_thinking_budget_is_the_least_of_a_reply(thinking: object, least: int) -> None:
    assert envelope("messages", max_tokens=10, thinking=thinking).minimum_reply_tokens == least


@pytest.mark.parametrize(
    ("name", "management", "expected"),
    [
        *(("messages", None, False), ("messages", {"edits": []}, False)),
        ("messages", {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, False),
        ("messages", {"edits": [{"type": "clear_tool_uses_20250919"}]}, True),
        ("messages", {"edits": [1, {}, {"type": []}, {"type": "compact_20260112"}]}, True),
        *(("messages", {"edits": 1}, False), ("responses", None, False), ("responses", [], False)),
        ("responses", [{"type": "compaction"}], True),
    ],
)
def test_a_request_may_ask_the_upstream_to_drop_old_parts(
    name: str, management: object, expected: bool
) -> None:
    assert envelope(name, context_management=management).is_trimmed is expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"previous_response_id": "resp_1"}, True),
        ({"conversation": {"id": "conv_1"}}, True),
        ({"previous_response_id": None, "conversation": None}, False),
    ],
)
def test_a_history_stored_upstream_makes_a_request_partial(fields: Any, expected: bool) -> None:
    assert envelope("responses", **fields).is_partial is expected


_SYSTEMS = [
    ("You look.", [text_block("You look.", **MARK)], True),
    ([text_block("a"), text_block("b")], [text_block("a", **MARK), text_block("b")], True),
    ([text_block("x-anthropic-billing-header: cch=1;"), text_block("a")], "a", True),
    *((None, "", True), (None, [], True), ("a", "b", False), ("a", None, False)),
    ([text_block("a")], [text_block("a"), {"type": "new"}], False),
]


@pytest.mark.parametrize(("one", "other", "same"), _SYSTEMS)
def test_only_the_texts_of_the_system_prompt_are_hashed(one: object, other: object, same: bool) -> None:
    assert (envelope("messages", system=one).system == envelope("messages", system=other).system) == same


def test_short_blocks_before_a_long_one_are_identity_blocks() -> None:
    prompt = "You look. " * 50
    found = envelope("messages", system=[text_block("I am it."), text_block(prompt)])
    assert found.identity_blocks == ("I am it.",)
    for system in ([text_block("I am it.")], prompt, None):
        assert envelope("messages", system=system).identity_blocks == ()
