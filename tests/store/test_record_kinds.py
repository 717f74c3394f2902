"""Every kind of record is loaded as it was stored, by its owner alone, or not at all if it does not fit."""

from dataclasses import is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.state.kinds import StateRecords
from gateway.state.records import Records
from gateway.store.interface import Key
from gateway.store.keys import make_tag
from tests.builders.state import make_store
from tests.toy.shared_store import SharedStore

# Keys and hashes are hexadecimal, and what people and models write may be anything.
_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: st.binary(min_size=1, max_size=3).map(bytes.hex),
    float: st.floats(0, 1e12),
    int: st.integers(0, 10**9),
    bool: st.booleans(),
    type(None): st.none(),
}
_WRITTEN = {"summary", "question", "resume", "placeholder", "reason", "instructions", "framing", "recalled"}
_WRITTEN |= {"text", "earlier"}
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def build(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type; records are those of tenant t."""
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if not is_dataclass(kind):
        inner = [build(each) for each in get_args(kind) if each is not Ellipsis]
        if get_origin(kind) is tuple:
            return st.lists(inner[0], max_size=3).map(tuple)
        return _PLAIN[kind] if kind in _PLAIN else st.one_of(inner)
    own = {name: build(hint) for name, hint in get_type_hints(kind).items()}
    own |= {name: _TEXTS for name in own if name in _WRITTEN}
    own |= {name: st.just("t") for name in own if name == "owner"}
    made: Any = kind
    return st.builds(made, **own)


async def open_kinds() -> tuple[SharedStore, list[Records[Any]]]:
    store = await make_store()
    records = StateRecords(store, 60)
    return store, list(vars(records).values())


NUMBERS = st.integers(0, 10)
NAME = "ab"


def put_raw(store: SharedStore, kind: Records[Any], value: bytes) -> None:
    store.put(Key(make_tag("t"), kind.kind.name, NAME), value, 60)


@given(NUMBERS, st.data())
async def test_a_record_is_loaded_as_it_was_stored_by_its_owner(number: int, data: st.DataObject) -> None:
    _, kinds = await open_kinds()
    kind = kinds[number]
    record = data.draw(build(kind.kind.type))
    kind.put("t", NAME, record, group="c")
    assert await kind.get("t", NAME) == record
    assert await kind.get("u", NAME) is None
    assert [each.record for each in await kind.list(make_tag("t"), "c")] == [record]
    assert await kind.take("t", NAME) == record and await kind.get("t", NAME) is None


@given(NUMBERS, st.data())
async def test_a_record_with_a_field_that_does_not_fit_is_none(number: int, data: st.DataObject) -> None:
    store, kinds = await open_kinds()
    kind = kinds[number]
    written = msgspec.to_builtins(data.draw(build(kind.kind.type)))
    if isinstance(written, dict):
        written[data.draw(st.sampled_from(sorted(written)))] = msgspec.msgpack.Ext(1, b"")
    put_raw(store, kind, msgspec.msgpack.encode(written if isinstance(written, dict) else 7))
    assert await kind.get("t", NAME) is None


@pytest.mark.parametrize(
    "data", [b"", b"\xc0", b"\x90", b"\x07", b"\xa4text", b"\x80\x04K\x01.", b"\x91" * 100_000]
)
async def test_garbage_is_none(data: bytes) -> None:
    store, kinds = await open_kinds()
    for kind in kinds:
        put_raw(store, kind, data)
        assert await kind.get("t", NAME) is None, kind.kind.name
