"""Small plays in front of a product, and everything that a client, an upstream or an operator saw of them.

A scene is given settings as a dict, and says what was seen by name. Two plays with the same settings show the
same.
"""

import asyncio
import json
import logging
import random
import re
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.toy.agent import Session, Shape, Style, make_session
from tests.toy.certificates import make_certificates
from tests.toy.chat import CHAT
from tests.toy.checks import read_headers
from tests.toy.delivery import Delivery, RawAnswer
from tests.toy.dialect import Dialect
from tests.toy.house import ADMIN_TOKEN, House
from tests.toy.material import make_prose
from tests.toy.messages import Messages
from tests.toy.product import Product, command, serve, serve_process
from tests.toy.raw import RawUpstream, ask, render_request
from tests.toy.reply import Reply
from tests.toy.responses import Responses
from tests.toy.running import Run, wait_until
from tests.toy.summarising import read_output_limit
from tests.toy.upstream import ToyUpstream

Settings = dict[str, Any]
Shown = dict[str, object]
KEY = "sk-scene"
# What is never the same twice, in what the admin port tells.
_TIMES = frozenset(
    {"first_seen", "updated", "last_seen", "created", "when", "seconds", "time", "times", "timestamp"}
)
FORMATS: Mapping[str, Dialect] = {"chat": CHAT, "messages": Messages(), "responses": Responses()}


@dataclass
class Stage:
    """play: what a row of the table says of its scene. other: a second upstream."""

    toy: ToyUpstream
    other: ToyUpstream
    folder: Path
    settings: Settings
    play: Mapping[str, Any] = field(default_factory=dict)

    def house(self, product: Product, key: str = KEY) -> House:
        return House(self.toy, product, key)

    @property
    def yaml(self) -> str:
        return yaml.safe_dump(self.settings)


Scene = Callable[[Stage], Awaitable[Shown]]


def make_base(stage_toy: ToyUpstream) -> Settings:
    return {
        "store": "memory:",
        "admin": {"port": 0, "token": ADMIN_TOKEN},
        "upstreams": {"default": {"base_url": stage_toy.base_url, "discover": False}},
        "models": [{"match": "toy-*", "context": stage_toy.window, "price": {"input": 0, "output": 0}}],
    }


def put(settings: Settings, path: str, value: object) -> None:
    """path: names and positions, with dots between them."""
    *names, last = path.split(".")
    at: Any = settings
    for name, following in zip(names, path.split(".")[1:], strict=True):
        empty: Any = [] if following.isdigit() else {}
        if name.isdigit():
            while len(at) <= int(name):
                at.append({})
            at = at[int(name)]
        else:
            at = at.setdefault(name, empty)
    if last.isdigit():
        at.insert(int(last), value)
    else:
        at[last] = value


async def show(scene: str, changes: Mapping[str, Any], play: Mapping[str, Any] | None = None) -> Shown:
    """Plays a scene once, with these settings by path."""
    play = play or {}
    window = play.get("window", 16_000)
    with tempfile.TemporaryDirectory() as folder:
        async with (
            ToyUpstream(window=window, bias=play.get("bias", 1.0)) as toy,
            ToyUpstream(window=window) as other,
        ):
            settings = make_base(toy)
            words = {"TOY": toy.base_url, "OTHER": other.base_url, "ROOT": toy.root_url, "FOLDER": folder}
            for path, value in changes.items():
                put(settings, path, _fill(value, words))
            return await SCENES[scene](Stage(toy, other, Path(folder), settings, play))


def _fill(value: Any, words: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for word, meaning in words.items():
            value = value.replace(f"<{word}>", meaning)
    elif isinstance(value, dict):
        return {name: _fill(each, words) for name, each in value.items()}
    elif isinstance(value, list):
        return [_fill(each, words) for each in value]
    return value


# Sessions


def _read_session(play: Mapping[str, Any]) -> Session:
    style: Style = play.get("style", "one_user")
    session = make_session(play.get("turns", 15), play.get("seed", 3), style, play.get("tokens", 1_000))
    if "opening" in play:
        task = {"role": "user", "content": make_prose(random.Random(1), play["opening"])}
        return replace(session, opening=(task,))
    return session


def _prepare(stage: Stage) -> Shape:
    play, toy = stage.play, stage.toy
    if play.get("price"):
        put(stage.settings, "models.0.price", {"input": 10, "cached": 1, "output": 30})
    if play.get("pruning"):
        put(stage.settings, "policies.default.preset", "prune_only")
    if "cached" in play:
        toy.cached_share = lambda _: play["cached"]
    if "summary_seconds" in play:
        toy.summary_delivery = Delivery(before_headers_seconds=play["summary_seconds"])
    if play.get("bad_summaries"):
        toy.summary = lambda _: Reply(text="")
    if "hook" in play:
        late = Delivery(before_headers_seconds=play["hook"])
        told = json.dumps({"instructions": "Mind the hook."}).encode()
        toy.raw_answers["POST", "/hook"] = RawAnswer(pieces=(told,), delivery=late)
    return Shape(
        dialect=FORMATS[play.get("format", "chat")],
        max_tokens=play.get("output", 1_000) or None,
        stream=play.get("stream", False),
    )


async def play_session(stage: Stage) -> Shown:
    """A session, turn by turn; nothing runs in the background while a turn goes on."""
    play, toy, shape = stage.play, stage.toy, _prepare(stage)
    session = _read_session(play)
    runs: list[Run] = []
    with _heard() as heard:
        async with serve(stage.yaml) as product:
            house = stage.house(product)
            for turn in range(play.get("first", 0), len(session)):
                runs.append(await house.play(session, shape, turn, turn + 1))
                await house.at_rest()
            if play.get("then"):
                await house.play(_read_session({**play, "seed": 4}), shape)
                await house.at_rest()
            if play.get("asks"):
                await _ask_for_a_fact(house, session)
            if "pause" in play:
                # As long as something lasts.
                await asyncio.sleep(play["pause"])
            shown = await _read_operator(house) if play.get("operator", True) else {}
            files = [path for path in stage.folder.rglob("*") if path.is_file() and not _is_bare(path)]
    answers = [answer for run in runs for answer in run.answers]
    sent = [seen for run in runs for tries in run.sent for seen in tries]
    calls = [seen for seen in (*toy.requests, *stage.other.requests) if seen.is_summary]
    return shown | {
        "statuses": [answer.status for answer in answers],
        "plans": [answer.header("x-gateway-plan") for answer in answers],
        "tokens": [answer.header("x-gateway-tokens") for answer in answers],
        "clamps": [read_output_limit(seen.request) for seen in sent],
        "prompts": [shape.dialect.items(seen.request) for seen in sent],
        "summaries": [seen.request for seen in calls],
        "count": len(calls),
        "models": [seen.request.get("model") for seen in calls],
        "elsewhere": len(stage.other.requests),
        "asked": shape.dialect.items(toy.chats[-1].request) if toy.chats else None,
        "others": [(seen.method, seen.path) for seen in toy.requests if not seen.is_chat],
        "signed": [sorted(read_headers(seen)) for seen in toy.requests if seen.path == "/hook"],
        "files": len(files),
        "heard": [re.sub(r"[0-9.]+", "N", line) for line in heard],
    }


def _is_bare(path: Path) -> bool:
    """A search index that holds nothing."""
    return path.name == "index.sqlite" and path.stat().st_size <= 1 << 16


async def _ask_for_a_fact(house: House, session: Session) -> None:
    """By a name that stands in what was summarized."""
    fact = next(fact.token for fact in session.facts if fact.kind == "tool")
    question = {"role": "user", "content": f"Say again what we read beside {fact}."}
    messages = [*session.messages(len(session) - 1), {"role": "assistant", "content": "Done."}, question]
    await house.post("/chat/completions", {"model": session.model, "messages": messages})


@contextmanager
def _heard() -> Iterator[list[str]]:
    """Warnings and errors of the product's log."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("gateway")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


async def _read_operator(house: House) -> Shown:
    """What the admin port tells of each conversation, without times."""
    _, page = await house.admin("/v1/conversations")
    if not isinstance(page, dict) or "conversations" not in page:
        return {}
    found: Shown = {"rows": _without_times(page["conversations"])}
    for name in ("originals", "summaries", "summary", "search?q=FACT"):
        answers = [
            await house.admin(f"/v1/conversations/{row['id']}/{name}") for row in page["conversations"]
        ]
        found[name.partition("?")[0] + " page"] = _without_times(answers)
    digests = [
        (row["id"], original["digest"])
        for row, (_, listed) in zip(page["conversations"], await _list_originals(house, page), strict=True)
        for taken in (listed.get("taken", ()) if isinstance(listed, dict) else ())
        for original in taken["messages"]
    ]
    texts = [await house.admin(f"/v1/conversations/{one}/originals/{digest}") for one, digest in digests]
    found["originals"] = [status for status, _ in texts]
    found["soft"] = [row["soft"] for row in page["conversations"]]
    found["spent"] = [row["spent_usd"] for row in page["conversations"]]
    _, metrics = await house.admin("/metrics")
    found["store"] = re.findall(r"^gateway_store_seconds_count\S* \d+", metrics, re.MULTILINE)
    return found


async def _list_originals(house: House, page: Mapping[str, Any]) -> list[tuple[int, Any]]:
    return [await house.admin(f"/v1/conversations/{row['id']}/originals") for row in page["conversations"]]


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_times(each) for name, each in value.items() if name not in _TIMES}
    return [_without_times(each) for each in value] if isinstance(value, list | tuple) else value


async def ask_for_models(stage: Stage) -> Shown:
    """What `refold models` says of a model."""
    path = stage.folder / "gateway.yaml"
    path.write_text(stage.yaml, "utf-8")
    result = await asyncio.to_thread(command, "models", "toy-model", "--json", "--config", str(path))
    (upstream,) = json.loads(result.out)["upstreams"]
    return {"lines": upstream["policies"], "limits": upstream}


# Single requests


async def ask_once(stage: Stage) -> Shown:
    """play: path, headers, body (added to a small chat), times, at_once, method."""
    play, toy = stage.play, stage.toy
    shape = _prepare(stage)
    if "seconds" in play:
        toy.delivery = Delivery(before_headers_seconds=play["seconds"])
    text = "Say something. " * play.get("words", 1)
    content: Any = text
    if "images" in play:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
        content = [{"type": "text", "text": text}, *[image] * play["images"]]
    body = {"model": "toy-model", "messages": [{"role": "user", "content": content}]} | play.get("body", {})
    async with serve(stage.yaml) as product:
        house = stage.house(product)
        url = f"{product.root_url}{play.get('path', '/v1' + shape.dialect.path)}"
        names = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        names |= play.get("headers", {})

        async def ask() -> tuple[int, dict[str, str], bytes]:
            data = json.dumps(body) if play.get("method", "POST") == "POST" else None
            try:
                async with (
                    asyncio.timeout(play.get("patience", 30)),
                    aiohttp.ClientSession() as client,
                    client.request(play.get("method", "POST"), url, data=data, headers=names) as response,
                ):
                    return response.status, dict(response.headers), await response.read()
            except (TimeoutError, aiohttp.ClientError):
                return 0, {}, b""

        if play.get("at_once"):
            answers = await asyncio.gather(*(ask() for _ in range(play["at_once"])))
        else:
            answers = [await ask() for _ in range(play.get("times", 1))]
        if play.get("discovers"):
            await wait_until(lambda: bool(toy.requests))
        await house.at_rest()
        status, _ = await house.admin("/v1/conversations")
        rows = await _read_operator(house)
    served = [seen for seen in toy.chats if seen.refusal is None]
    return rows | {
        "statuses": sorted(status for status, _, _ in answers),
        "headers": [sorted(name for name in head if name.lower().startswith("x-")) for _, head, _ in answers],
        "read": [any(n.lower() == "x-gateway-conversation" for n in head) for _, head, _ in answers],
        "called": [seen.path for seen in toy.requests],
        "traced": [
            (read_headers(seen).get("x-key"), b"my-service" in seen.body)
            for seen in toy.requests
            if seen.path.endswith("/traces")
        ],
        "elsewhere": [seen.path for seen in stage.other.requests],
        "in turn": [seen.started >= (served[0].ended or 0) for seen in served],
        "keys": [read_headers(seen).get("authorization") for seen in toy.chats],
        "bodies": [seen.request for seen in toy.chats],
        "admin": status,
        "stored": sorted(path.name for path in stage.folder.rglob("*") if path.is_file()),
    }


async def find_address(stage: Stage) -> Shown:
    """play: port, `data` or `admin`."""
    free = await _find_free_port()
    for section in ("listen", "admin"):
        if stage.settings.get(section, {}).get("port") == "FREE":
            stage.settings[section]["port"] = free
    async with serve(stage.yaml) as product:
        port = product.port if stage.play["port"] == "data" else product.admin_port
        try:
            _, writer = await asyncio.open_connection("127.0.0.2", port)
            writer.close()
            answers = True
        except OSError:
            answers = False
    return {"answers": answers, "is chosen": port == free}


async def _find_free_port() -> int:
    server = await asyncio.start_server(lambda _, __: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


async def speak_slowly(stage: Stage) -> Shown:
    """play: say, the bytes that are sent; connections, so many before; patience."""
    async with serve(stage.yaml) as product:
        opened = []
        for _ in range(stage.play.get("connections", 1)):
            reader, writer = await asyncio.open_connection("127.0.0.1", product.port)
            opened.append(writer)
        writer.write(stage.play["say"].encode() + b"x" * stage.play.get("more", 0))
        try:
            async with asyncio.timeout(stage.play.get("patience", 1.5)):
                heard = (await reader.read(1_000))[:12]
        except TimeoutError:
            heard = b"nothing"
        except ConnectionError:
            heard = b""
        for writer in opened:
            writer.close()
    return {"heard": heard}


async def stop_early(stage: Stage) -> Shown:
    """The product stops while an upstream thinks."""
    stage.toy.delivery = Delivery(before_headers_seconds=0.7)
    async with serve(stage.yaml) as product:
        house = stage.house(product)
        body = {"model": "toy-model", "messages": [{"role": "user", "content": "Think."}]}
        asking = asyncio.create_task(house.post("/chat/completions", body))
        await wait_until(lambda: bool(stage.toy.chats))
        await product.stop()
        try:
            status = (await asking).status
        except aiohttp.ClientError:
            status = 0
    return {"status": status}


async def wait_for_summary(stage: Stage) -> Shown:
    """A long history at once, streamed, whose summary takes a while."""
    stage.toy.summary_delivery = Delivery(before_headers_seconds=0.5)
    session = make_session(15, 3, "one_user", 1_000)
    async with serve(stage.yaml) as product:
        body = session.request(14, Shape(max_tokens=1_000, stream=True))
        answer = await stage.house(product).post("/chat/completions", body)
    waits = [line for line in answer.body.splitlines() if line.startswith(b":")]
    return {"waits": bool(waits), "often": len(waits) > 1}


async def summarize_twice(stage: Stage) -> Shown:
    """Two long histories at once. play: keys. count: summaries that are made at the same time."""
    gate = asyncio.Event()
    stage.toy.summary_delivery = Delivery(after=gate)
    async with serve(stage.yaml) as product:
        asking = [
            asyncio.create_task(
                stage.house(product, key).post(
                    "/chat/completions", make_session(15, seed, "one_user", 1_000).request(14, Shape())
                )
            )
            for seed, key in enumerate(stage.play["keys"], 3)
        ]
        await wait_until(lambda: bool(stage.toy.summaries))
        try:
            await wait_until(lambda: len(stage.toy.summaries) > 1, 1.5)
        except TimeoutError:
            pass
        count = len(stage.toy.summaries)
        gate.set()
        await asyncio.gather(*asking)
    return {"count": count}


async def compact_by_hand(stage: Stage) -> Shown:
    """The first of two conversations, whose request was not the newest."""
    async with serve(stage.yaml) as product:
        house = stage.house(product)
        runs = [await house.play(make_session(8, seed, "one_user", 1_000), Shape(), 0, 6) for seed in (3, 4)]
        path = f"/v1/conversations/{runs[0].conversation}/compact"
        _, answer = await house.admin(path, "POST", b"{}")
        await house.at_rest()
    return {
        "answer": {name: answer[name] for name in answer if name != "id"},
        "count": len(stage.toy.summaries),
    }


async def name_responses(stage: Stage) -> Shown:
    """Responses that name the one before."""
    session = make_session(6, 3, "talk", 400)
    shape = Shape(dialect=Responses(history="previous"), max_tokens=1_000)
    async with serve(stage.yaml) as product:
        house = stage.house(product)
        first = await house.play(session, shape, 0, 4)
        await house.at_rest()
        await asyncio.sleep(stage.play.get("pause", 0))
        run = await house.play(session, shape, 4, since=first.since)
    return {"tokens": [answer.header("x-gateway-tokens") for answer in run.answers]}


async def start_again(stage: Stage) -> Shown:
    """A session that goes on after a pause, in a second gateway on the same store."""
    put(stage.settings, "store", f"disk:{stage.folder}/state")
    session, plans = make_session(16, 3, "one_user", 1_000), []
    for first, last in ((0, 14), (14, 16)):
        async with serve(stage.yaml) as product:
            house = stage.house(product)
            plans += (await house.play(session, Shape(max_tokens=1_000), first, last)).plans
            await house.at_rest()
        await asyncio.sleep(stage.play["pause"])
    return {"plans": plans, "count": len(stage.toy.summaries)}


async def connect_in_vain(stage: Stage) -> Shown:
    """The upstream's port takes no more connections."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        put(stage.settings, "upstreams.default.base_url", f"http://127.0.0.1:{port}/v1")
        shown = await ask_once(replace(stage, play={"patience": 1.5}))
        for each in waiting:
            each.close()
    return shown


async def read_log(stage: Stage) -> Shown:
    """Of a process that answers one request."""
    put(stage.settings, "admin.token", None)
    async with serve_process(stage.yaml, stage.folder) as process:
        async with aiohttp.ClientSession() as client:
            body = {"model": "toy-model", "messages": [{"role": "user", "content": "Hello."}]}
            headers = {"Authorization": f"Bearer {KEY}"}
            url = f"{process.base_url}/chat/completions"
            async with client.post(url, json=body, headers=headers) as response:
                await response.read()
        await process.stop()
        log = process.log
    return {
        "is json": '"message"' in log,
        "is long": "status=200" in log,
    }


async def reach_by_tls(stage: Stage) -> Shown:
    """An upstream with an authority of its own. play: asks, whether it wants a certificate."""
    certificates = await asyncio.to_thread(make_certificates, stage.folder)
    await asyncio.to_thread(certificates.join_client)
    async with RawUpstream(tls=certificates.make_server_context(asks=stage.play.get("asks", False))) as there:
        stage.settings["upstreams"]["default"]["base_url"] = there.base_url
        async with serve(stage.yaml) as product:
            got = await ask(product.port, render_request("/v1/other", b"{}"))
    return {"status": got.status}


async def reach_by_proxy(stage: Stage) -> Shown:
    """An upstream that only the proxy at <PROXY> reaches."""
    async with RawUpstream() as proxy:
        upstream = stage.settings["upstreams"]["default"]
        if "proxy" in upstream:
            upstream["proxy"] = upstream["proxy"].replace("<PROXY>", f"127.0.0.1:{proxy.port}")
        upstream["base_url"] = "http://model.invalid/v1"
        async with serve(stage.yaml) as product:
            got = await ask(product.port, render_request("/v1/other", b"{}"))
    return {"status": got.status}


SCENES: dict[str, Scene] = {
    "session": play_session,
    "models": ask_for_models,
    "request": ask_once,
    "address": find_address,
    "slow": speak_slowly,
    "stop": stop_early,
    "wait": wait_for_summary,
    "two summaries": summarize_twice,
    "by hand": compact_by_hand,
    "named": name_responses,
    "again": start_again,
    "full port": connect_in_vain,
    "tls": reach_by_tls,
    "proxy": reach_by_proxy,
    "log": read_log,
}
