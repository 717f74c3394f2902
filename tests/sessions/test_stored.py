"""What the stores have of a session is found by the tag of its owner."""

from gateway.sessions.record import name_session, render_session
from gateway.sessions.stored import SessionNames, find_session_names, load_session, load_titles
from gateway.sessions.title_calls import name_title
from gateway.store.keys import make_tag
from tests.builders.sessions import TAG
from tests.builders.state import make_store
from tests.sessions.test_record import make_session


async def test_titles_of_many_conversations_are_loaded_by_tenant() -> None:
    store = await make_store()
    for owner, identity in (("t", "c"), ("t", "d"), ("u", "c")):
        session = make_session(owner=owner, id=identity, title=f"{owner} {identity}")
        store.write(name_session(make_tag(owner), identity), render_session(session), keep_seconds=60)
    store.write(name_session(TAG, "e"), b"damaged", keep_seconds=60)
    wanted = {TAG: ["d", "c", "x", "e"], make_tag("u"): ["d"], make_tag("v"): ["c"]}
    assert await load_titles(store, wanted) == {"c": "t c", "d": "t d"}
    assert await load_titles(store, {}) == {}


async def test_all_names_of_a_session_are_found() -> None:
    store = await make_store()
    session = make_session(edits=(3, 70), proofs=("label.aa", "asked.bb"))
    key = name_session(TAG, "c")
    store.write(key, render_session(session), keep_seconds=60)
    store.write(name_title(TAG, "asked.bb"), b"x", keep_seconds=60)
    names = await find_session_names(store, TAG, "c")
    assert names.state == [key, name_title(TAG, "asked.bb")]
    assert [name.rpartition(":")[2] for name in names.diffs] == ["3", "70"]
    assert await find_session_names(store, TAG, "d") == SessionNames([], [])
    store.write(key, b"damaged", keep_seconds=60)
    assert await find_session_names(store, TAG, "c") == SessionNames([key], [])


async def test_a_session_is_loaded_by_its_owner_alone() -> None:
    store, session = await make_store(), make_session()
    store.write(name_session(TAG, "c"), render_session(session), keep_seconds=60)
    assert await load_session(store, TAG, "c") == session
    assert await load_session(store, make_tag("u"), "c") is None
