"""What is not sent any more is found again by what it says: over restarts, damage, and from beside."""

import asyncio
import json
import shutil
import sqlite3
import stat
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.toy.chat import CHAT
from tests.toy.dialect import Dialect
from tests.toy.dialects import DIALECTS
from tests.toy.house import ADMIN, House, make_settings
from tests.toy.product import serve
from tests.toy.running import wait_until
from tests.toy.tool_calls import JSON, call, describe_tools, translate
from tests.toy.upstream import ToyUpstream

pytestmark = pytest.mark.asyncio(loop_scope="module")

WINDOW = 16_000
# A digest needs no call, and so takes no facts out of the tests' sight.
_DIGESTS = "economy: 0, summary: {method: digest}"
MORE = f"policies: {{default: {{{_DIGESTS}}}}}\n"
_TEXTS = (
    "Please fix the login page, it shows Error 4711 to customers.",
    "I look at gateway/core/search/terms.py and at foo_bar_baz.",
    "commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b by somebody",
    "class HTTPResponseReader: def readChunkedBody(self)",
    "错误处理代码在这个文件里。日本語のテキストもある。",
    "Deployed 🚀 to production",
    "Das Maß der Straße über Ägypten",
    "x" * 5_000 + " needle " + "y" * 5_000,
)


def make_history(texts: Sequence[str], turns: int = 40) -> list[JSON]:
    """What a user says behind an opening, and then so much that it is folded."""
    said = ["Begin.", "Yes."]
    for text in texts:
        said += [text, "I see."]
    for at in range(turns):
        said += [f"Some other line of text {at}. " + "filler " * 250, f"Step {at} is done."]
    said.append("Go on.")
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(said)]


async def fold(house: House, history: Sequence[JSON], dialect: Dialect = CHAT, **more: object) -> str:
    """One request that has to be shortened: the id of its conversation."""
    name = "input" if dialect.path == "/responses" else "messages"
    body = {"model": "toy-model", name: list(history), dialect.output_key: 500, **more}
    answer = await house.post(dialect.path, body, **dialect.headers(house.key))
    assert answer.status == 200, answer.body
    await house.at_rest()
    return answer.header("x-gateway-conversation") or ""


async def search(house: House, identity: str, query: str, limit: int = 10) -> list[JSON]:
    path = f"/v1/conversations/{identity}/search?limit={limit}&q={query.replace('+', '%2B')}"
    status, found = await house.admin(path)
    assert status == 200, found
    return list(found["found"])


async def find(house: House, identity: str, query: str) -> list[int]:
    return sorted(piece["position"] for piece in await search(house, identity, query))


# Of a text's number: behind the opening and its answer, each text and its answer.
def place(number: int) -> int:
    return 2 + 2 * number


@dataclass(frozen=True)
class Folded:
    """A house with one conversation, whose beginning is not sent any more."""

    house: House
    identity: str


@pytest_asyncio.fixture(name="folded", scope="module", loop_scope="module")
async def _folded(shared_house: House) -> Folded:
    house = House(shared_house.toy, shared_house.product, "sk-folded")
    return Folded(house, await fold(house, make_history(_TEXTS)))


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ("what did the user say about the login page?", 0),
        ("4711", 0),
        ("gateway/core/search/terms.py", 1),
        ("search/terms", 1),
        ("terms.py", 1),
        ("foo_bar_baz", 1),
        ("bar_baz", 1),
        ("9f86d08", 2),
        ("HTTPResponseReader", 3),
        ("response reader", 3),
        ("chunked", 3),
        ("ResponseRead", 3),
        ("错误处理", 4),
        ("错误", 4),
        ("代码在哪个文件", 4),
        ("日本語", 4),
        ("🚀", 5),
        ("strasse agypten", 6),
        ("ägypten", 6),
        ("needle", 7),
        # The syntax of the database is only text.
        ('"login', 0),
        ("login NOT page", 0),
        ("NEAR(login page)", 0),
        ("text:login", 0),
        ("(login", 0),
        ("login*", 0),
    ],
)
async def test_a_message_is_found_by_words_their_parts_paths_and_identifiers(
    folded: Folded, query: str, number: int
) -> None:
    found = await search(folded.house, folded.identity, query)
    first = found[0]
    assert (first["position"], first["role"], first["conversation"]) == (
        place(number),
        "user",
        folded.identity,
    )
    assert first["text"] == _TEXTS[number][first["start"] : first["end"]]


async def test_what_no_message_says_is_not_found_and_the_most_are_given_back(folded: Folded) -> None:
    for query in ("zebra", "qqqq", "错字"):
        assert await search(folded.house, folded.identity, query) == []
    common = await search(folded.house, folded.identity, "line of text", limit=3)
    assert len(common) == 3
    assert [piece["text"] for piece in await search(folded.house, folded.identity, "see")] == ["I see."]
    # What is still sent is no original.
    assert "39." not in json.dumps(await search(folded.house, folded.identity, "line 39", limit=50))


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path.strip("/"))
async def test_a_result_is_found_with_the_tool_and_the_path_of_its_own_call(
    house: House, dialect: Dialect
) -> None:
    history: list[JSON] = [{"role": "user", "content": "Go."}]
    history += call(1, "read", {"path": "src/app.py"}, "def main(): return 4711")
    history += call(2, "bash", {"command": "ls vogelhaus"}, "kanarienvogel.txt")
    history += [{"role": "assistant", "content": "It returns 815."}, *make_history([])]
    tools = describe_tools(dialect, "read", "bash")
    identity = await fold(house, translate(history, dialect), dialect, tools=tools)
    (piece, *_) = await search(house, identity, "def main")
    assert (piece["role"], piece["tool"], piece["path"]) == ("tool", "read", "src/app.py")
    assert (piece["position"], piece["text"]) == (2, "def main(): return 4711")
    (other, *_) = await search(house, identity, "kanarienvogel")
    assert (other["position"], other["role"], other["tool"], other["path"]) == (4, "tool", "bash", None)
    # A call is found by its arguments, as they are read.
    (called, *_) = await search(house, identity, "vogelhaus")
    assert (called["position"], called["role"], called["tool"]) == (3, "assistant", "bash")
    assert "command: ls vogelhaus" in called["text"]
    (said, *_) = await search(house, identity, "815")
    assert (said["role"], said["tool"], said["text"]) == ("assistant", None, "It returns 815.")


async def test_no_query_finds_what_is_another_tenants_or_conversations(house: House) -> None:
    other = House(house.toy, house.product, f"{house.key}-other")
    places = {}
    for owner, word in ((house, "first"), (house, "second"), (other, "third")):
        places[word] = owner, await fold(owner, make_history([f"canary src/app.py 日本語 of the {word}"]))
    for query in ("canary", "src/app.py", "日本語", "first second third", "app"):
        for word, (owner, identity) in places.items():
            texts = [piece["text"] for piece in await search(owner, identity, query)]
            assert any(word in text for text in texts)
            assert not any(beside in text for beside in places if beside != word for text in texts)


# The files of the index.


@asynccontextmanager
async def open_house(toy: ToyUpstream, store: Path, more: str = MORE) -> AsyncIterator[House]:
    settings = make_settings(toy, store=f"disk:{store}", more=ADMIN + more)
    async with serve(settings) as product:
        yield House(toy, product, "sk-a", store)


def list_files(store: Path) -> list[Path]:
    return sorted((store / "search").rglob("*.sqlite"))


async def test_a_later_process_finds_the_same_and_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    store = tmp_path / "state"
    async with ToyUpstream(window=WINDOW) as toy:
        async with open_house(toy, store) as house:
            identity = await fold(house, make_history(_TEXTS))
            assert list_files(store) == []
            first = await search(house, identity, "login page")
            (path,) = list_files(store)
        async with open_house(toy, store) as house:
            assert await search(house, identity, "login page") == first
        whole, texts = path.read_bytes(), [piece["text"] for piece in first]
        halves = whole[: len(whole) // 2], whole[:4096] + bytes(len(whole) - 4096)
        async with open_house(toy, store) as house:
            for damage in (None, b"no database at all" * 500, *halves):
                await asyncio.to_thread(_replace, path, damage)
                found = await search(house, identity, "login page")
                assert [piece["text"] for piece in found] == texts
        for damage in (b"", b"damaged" * 1_000):
            await asyncio.to_thread(_replace, path, damage)
            async with open_house(toy, store) as house:
                found = await search(house, identity, "login page")
                assert [piece["text"] for piece in found] == texts
        # Of another version.
        with closing(sqlite3.connect(path)) as index:
            index.execute("PRAGMA user_version=77")
        async with open_house(toy, store) as house:
            found = await search(house, identity, "login page")
            assert [piece["text"] for piece in found] == texts
    modes = {stat.S_IMODE(each.stat().st_mode) for each in [store / "search", *(store / "search").rglob("*")]}
    assert modes == {0o700, 0o600}


async def test_the_files_of_an_earlier_version_are_deleted(tmp_path: Path) -> None:
    store = tmp_path / "state"
    async with ToyUpstream(window=WINDOW) as toy:
        async with open_house(toy, store) as house:
            identity = await fold(house, make_history(_TEXTS))
        for name in ("0" * 32, "locks"):
            (store / "search" / name).mkdir(parents=True)
            (store / "search" / name / f"{identity}.sqlite").write_bytes(b"canary")
        async with open_house(toy, store) as house:
            assert await find(house, identity, "login page") == [place(0)]
        assert len(list_files(store)) == 1
        assert [path for path in (store / "search").iterdir() if path.is_dir()] == []


def _replace(path: Path, data: bytes | None) -> None:
    for beside in path.parent.glob(f"{path.name}-*"):
        beside.unlink()
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)


async def test_two_processes_with_one_store_find_what_either_has_folded(tmp_path: Path) -> None:
    store, history = tmp_path / "state", make_history(_TEXTS)
    async with (
        ToyUpstream(window=WINDOW) as toy,
        open_house(toy, store) as one,
        open_house(toy, store) as other,
    ):
        identity = await fold(one, history)
        first = await find(one, identity, "login page")
        await wait_for_log(other, identity)
        assert await find(other, identity, "login page") == first == [place(0)]
        # More is folded by the other one.
        later = [*history, {"role": "assistant", "content": "A vogelhaus was built."}, *make_history([])]
        assert await fold(other, later) == identity
        await wait_until(lambda: len(list_files(store)) == 1)
        for house in (one, other):
            assert await find(house, identity, "vogelhaus") == [len(history)]
            assert await find(house, identity, "login page") == [place(0)]
        # It is deleted by one, and found by none.
        assert (await one.admin(f"/conversations/{identity}", "DELETE"))[0] == 200
        await one.at_rest()
        status, found = await other.admin(f"/v1/conversations/{identity}/search?q=login")
        assert (status, found.get("found", [])) in ((404, []), (200, []))
        for word in (b"vogelhaus", b"login", b"foo_bar_baz"):
            assert not any(word in path.read_bytes() for path in (store / "search").iterdir())


async def wait_for_log(house: House, identity: str) -> None:
    async with asyncio.timeout(30):
        while (await house.admin(f"/v1/conversations/{identity}/log"))[0] != 200:
            await asyncio.sleep(0.02)


async def test_a_search_that_cannot_be_made_does_not_say_that_nothing_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "state"
    async with ToyUpstream(window=WINDOW) as toy:
        async with open_house(toy, store) as house:
            identity = await fold(house, make_history(_TEXTS))
        await asyncio.to_thread(shutil.rmtree, store / "search", ignore_errors=True)
        (store / "search").write_text("")
        async with open_house(toy, store) as house:
            for _ in range(2):
                status, told = await house.admin(f"/v1/conversations/{identity}/search?q=login")
                assert status == 503 and "could not be searched" in told["detail"]
            _, metrics = await house.admin("/metrics")
    assert 'gateway_recall_searches_total{result="failed",way="admin"} 2.0' in metrics
    assert caplog.text.count("originals cannot be searched") == 1


async def test_what_was_added_first_makes_room_for_one_tenant_alone(tmp_path: Path) -> None:
    store = tmp_path / "state"
    more = f"{MORE}retention: {{search_bytes: 900000}}\n"
    async with ToyUpstream(window=WINDOW) as toy, open_house(toy, store, more) as house:
        other = House(toy, house.product, "sk-b", store)
        kept = await fold(other, make_history(["vogelhaus"]))
        assert await find(other, kept, "vogelhaus") == [place(0)]
        (path,) = list_files(store)
        (theirs, *sizes), ids = [path.stat().st_size], list[str]()
        for number in range(6):
            ids.append(await fold(house, make_history([f"canary {number} kanarienvogel{number}"])))
            assert await find(house, ids[-1], "canary") == [place(0)]
            sizes.append(path.stat().st_size)
        await house.at_rest()
        assert max(sizes) <= theirs + 600_000, sizes
        words = path.read_bytes()
        assert b"vogelhaus" in words and b"kanarienvogel5" in words and b"kanarienvogel0" not in words
        # It is made again where it is asked for.
        assert await find(house, ids[0], "canary") == [place(0)]
