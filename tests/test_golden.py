"""Worked examples: each folder of tests/golden holds requests, and every byte that follows from them.

`N-request.json` is sent to a running gateway, one after the other. `N-upstream.json` is what the upstream
gets, `N-answer.json` (or .sse) what it says, and `N-response.json` what the client gets. `summary.txt` is
what the model writes when it is asked for a summary; `settings.yaml` is the gateway's, without its upstream.
Where these two are missing, those of tests/golden are used, and an answer is "Ok." The first word of a
folder's name may be a format; else it is chat. `make golden` writes what is missing of the upstream's and the
client's bytes, and changes no file.
"""

import os
from collections.abc import Callable, Iterator
from itertools import count, takewhile
from pathlib import Path

import aiohttp
import pytest

from tests.toy.delivery import STREAM_HEADERS, RawAnswer
from tests.toy.dialect import Dialect
from tests.toy.dialects import find_dialect
from tests.toy.product import serve
from tests.toy.reply import Reply
from tests.toy.running import ask
from tests.toy.upstream import Seen, ToyUpstream
from tests.toy.validity import Rules

_GOLDEN = Path(__file__).parent / "golden"
_EXAMPLES = sorted(path.name for path in _GOLDEN.iterdir() if path.is_dir())
_UPSTREAM = """
store: "memory:"
upstreams: {default: {base_url: "%s", discover: false, formats: [chat, responses, messages]}}
"""
_WRITES = os.environ.get("WRITE_GOLDEN") == "1"


def find_own_dialect(example: str) -> Dialect:
    """By the format in the folder's name."""
    paths = (f"/{example.partition('_')[0]}", "/chat/completions")
    return next(dialect for path in paths if (dialect := find_dialect(path)) is not None)


def find_file(folder: Path, name: str) -> Path:
    own = folder / name
    return own if own.exists() else _GOLDEN / name


def list_requests(folder: Path) -> Iterator[tuple[int, Path]]:
    numbered = ((number, folder / f"{number}-request.json") for number in count(1))
    return takewhile(lambda each: each[1].exists(), numbered)


def find_answer(folder: Path, number: int) -> RawAnswer | None:
    whole, streamed = (folder / f"{number}-answer.{kind}" for kind in ("json", "sse"))
    if streamed.exists():
        return RawAnswer(headers=STREAM_HEADERS, pieces=(streamed.read_bytes(),), length=False)
    return RawAnswer(pieces=(whole.read_bytes(),)) if whole.exists() else None


def make_intercept(answer: RawAnswer | None) -> Callable[[Seen], RawAnswer | None]:
    return lambda seen: None if seen.is_summary else answer


def check(file: Path, found: bytes) -> None:
    if _WRITES and not file.exists():
        file.write_bytes(found)
    assert found == file.read_bytes(), file.name


@pytest.mark.system(6)
@pytest.mark.parametrize("example", _EXAMPLES)
async def test_every_byte_is_that_of_the_example(example: str) -> None:
    folder, dialect = _GOLDEN / example, find_own_dialect(example)
    summary = find_file(folder, "summary.txt").read_text("utf-8")
    async with ToyUpstream(window=1 << 20, rules=Rules(later_system=True, foreign_secrets=True)) as toy:
        toy.reply, toy.summary = (lambda _: Reply(text="Ok.")), lambda _: Reply(text=summary)
        settings = _UPSTREAM % toy.base_url + find_file(folder, "settings.yaml").read_text("utf-8")
        headers = {"Content-Type": "application/json", **dialect.headers("sk-golden")}
        async with serve(settings) as product, aiohttp.ClientSession(headers=headers) as client:
            for number, file in list_requests(folder):
                toy.intercept = make_intercept(find_answer(folder, number))
                answer = await ask(client, f"{product.base_url}{dialect.path}", file.read_bytes())
                await product.at_rest()
                check(folder / f"{number}-upstream.json", toy.chats[-1].body)
                check(folder / f"{number}-response.json", answer.body)
                assert (answer.status, len(toy.chats)) == (200, number)
