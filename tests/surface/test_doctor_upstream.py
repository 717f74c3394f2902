"""`refold doctor` on upstreams, windows, clocks, ports and exposure: each broken set-up has its fix."""

import asyncio
import json
import resource
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path

import pytest

from tests.surface.written import KEYED, PLAIN, TENANT, write
from tests.toy.agent import make_session
from tests.toy.certificates import make_self_signed
from tests.toy.delivery import STREAM_HEADERS, Delivery, RawAnswer
from tests.toy.diagnosis import NO_STORE, diagnose, name_upstream, serving_models
from tests.toy.house import make_settings
from tests.toy.product import command, serve
from tests.toy.running import run_session
from tests.toy.upstream import ToyUpstream

KEY = "sk-a-secret-of-the-upstream"
LIST = ("GET", "/v1/models")
NO_LIST = name_upstream("http://127.0.0.1:9/v1", ", discover: false")
NOWHERE = 'store: "memory:"\n' + name_upstream("http://127.0.0.1:9/v1")
SUBJECTS = {"settings", "store", "search", "upstream", "windows", "clock", "ports", "process", "exposure"}


async def test_every_subject_has_a_finding_and_a_good_set_up_is_well(tmp_path: Path) -> None:
    async with serving_models(names=["a", "b"]) as base_url:
        report = await diagnose(tmp_path, NO_STORE + name_upstream(base_url))
        good = NO_STORE + name_upstream(base_url) + "models: [{match: '*', context: 9000}]\n"
        shown = await asyncio.to_thread(command, "doctor", "--config", write(tmp_path, good))
    assert {each.subject for each in report.findings} == SUBJECTS
    assert any("lists 2 models, 2 with their windows" in each.what for each in report.about("upstream"))
    assert shown.status == 0 and "All is well." in shown.out and "\x1b" not in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    bad = await asyncio.to_thread(command, "doctor", "--config", write(tmp_path, good))
    assert bad.status == 2 and "connection refused" in " ".join(bad.out.split())
    assert bad.out.splitlines()[-1].rstrip() == "problems: 1, warnings: 0"


# Settings.


async def test_each_mistake_has_its_line_and_nothing_else_is_examined(tmp_path: Path) -> None:
    text = NO_STORE + "upstreams: {up: {base_url: 'ftp://x', api_key: sk-a-secret}}\nretenton: {days: 3}\n"
    report = await diagnose(tmp_path, text)
    assert {each.subject for each in report.findings} == {"settings"} and len(report.findings) == 2
    assert all("f.yaml:" in each.fix for each in report.findings) and "sk-a-secret" not in report.text


async def test_settings_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    absent = await diagnose(tmp_path, "", "--config", str(tmp_path / "absent.yaml"))
    assert absent.status == 2 and "absent.yaml" in absent.one("settings").what
    text = NO_STORE + name_upstream("http://127.0.0.1:9/v1", ", api_key: '${NO_SUCH_KEY}'")
    assert "NO_SUCH_KEY" in (await diagnose(tmp_path, text)).one("settings").what


# Upstreams: what one answers to a request for its list of models, and what is found.


@dataclass(frozen=True)
class Broken:
    """answers: by path. more: of the upstream's settings."""

    what: str
    fix: str
    answers: Mapping[str, RawAnswer] = field(default_factory=dict)
    level: str = "problem"
    more: str = ""


_REDIRECT = RawAnswer(status=308, headers=(("Location", "https://elsewhere.example/v1/models"),))
_PAGE = RawAnswer(headers=(("Content-Type", "text/html"),), pieces=(b"<html>",))
_NONE = RawAnswer(status=404, pieces=(b"{}",))
_CUT = RawAnswer(pieces=(b"x" * 100,), delivery=Delivery(stop_after_bytes=10, ending="abort"))
_ODD = RawAnswer(status=302, headers=(("Location", "http://x/\u00e9\x7f"),))
_BROKEN = {
    **{
        f"a key that is refused with {status}": Broken(
            f"refuses its api_key (status {status})",
            "upstreams.up.api_key: ${",
            {"/v1/models": RawAnswer(status=status, pieces=(b'{"error": "bad key %b"}' % KEY.encode(),))},
            more=f", api_key: {KEY}",
        )
        for status in (401, 403)
    },
    "no list of models": Broken(
        "not a list of models (status 404)",
        'models: [{match: "NAME", upstream: up, context:',
        {"/v1/models": _NONE, "/models": _NONE},
        "warning",
    ),
    "a redirect": Broken("", "base_url: https://elsewhere.example/v1", {"/v1/models": _REDIRECT}),
    "a redirect that is no text": Broken("", "", {"/v1/models": _ODD}),
    "a web page": Broken(
        "web page", "correct upstreams.up.base_url", {"/v1/models": _PAGE, "/models": _PAGE}
    ),
    "a connection that is cut": Broken("", "curl -v", {"/v1/models": _CUT}),
}


@pytest.mark.parametrize("broken", _BROKEN.values(), ids=_BROKEN)
async def test_a_broken_upstream_has_its_fix(tmp_path: Path, broken: Broken) -> None:
    async with ToyUpstream() as toy:
        toy.raw_answers = {("GET", path): answer for path, answer in broken.answers.items()}
        report = await diagnose(tmp_path, NO_STORE + name_upstream(toy.base_url, broken.more))
        callers = await diagnose(tmp_path, NO_STORE + name_upstream(toy.base_url))
    found = report.one("upstream")
    assert found.level == broken.level and broken.what in found.what
    assert broken.fix in found.fix
    assert (found.what + found.fix).isprintable() and found.fix.isascii() and KEY not in report.text
    # Without a key of its own, each caller brings one.
    assert not broken.more or callers.bad("upstream") == []


@pytest.mark.parametrize(
    ("change", "what", "fix"),
    [
        ("closed", "connection refused", "start the server, or correct the port in upstreams.up.base_url"),
        ("unknown", "name not found", "getent hosts models.invalid"),
        ("self-signed", "certificate not accepted: self", "update-ca-certificates"),
        ("plain", "", "base_url: http://127.0.0.1:"),
        ("no version", "", "base_url: http://127.0.0.1:"),
    ],
)
async def test_an_address_that_leads_nowhere_has_its_fix(
    tmp_path: Path, change: str, what: str, fix: str
) -> None:
    tls = None
    if change == "self-signed":
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*make_self_signed(tmp_path))
    async with serving_models(tls=tls) as base_url:
        address = {
            "unknown": "http://models.invalid/v1",
            "plain": base_url.replace("http:", "https:"),
            "no version": base_url.removesuffix("/v1"),
        }.get(change, base_url)
        if change != "closed":
            report = await diagnose(tmp_path, NO_STORE + name_upstream(address))
    if change == "closed":
        report = await diagnose(tmp_path, NO_STORE + name_upstream(address))
    found = report.one("upstream")
    assert what in found.what and fix in found.fix
    assert change not in ("plain", "no version") or found.fix.startswith(f"base_url: {base_url}")


async def test_a_key_is_in_no_finding_even_if_the_upstream_repeats_it(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        place = (("Location", f"/login?key={KEY}"), ("Content-Type", "application/json"))
        toy.intercept = lambda seen: RawAnswer(status=400, headers=place, pieces=(KEY.encode(),))
        text = NO_STORE + name_upstream(toy.base_url, f", api_key: {KEY}")
        report = await diagnose(tmp_path, text, "--ask", "m")
        assert toy.requests
    assert KEY not in report.text


# One request of one token: only if asked, and what its answer shows.

CHAT = ("POST", "/v1/chat/completions")
NAMES = RawAnswer(pieces=(b'{"data": [{"id": "toy-1"}, {"id": "toy-2"}]}',))


async def test_nothing_is_billed_unless_a_model_is_named(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        toy.raw_answers[LIST] = NAMES
        await diagnose(tmp_path, NO_STORE + name_upstream(toy.base_url), "--model", "toy-1")
        assert {seen.method for seen in toy.requests} == {"GET"}
        price = "models: [{match: toy-1, price: {input: 2.5, output: 10}}]\n"
        report = await diagnose(tmp_path, NO_STORE + name_upstream(toy.base_url) + price, "--ask", "toy-1")
        (asked,) = toy.chats
    (told,) = report.about("streaming")
    assert told.level == "ok" and "streams, with usage; this question cost" in told.what
    assert "some $0.0000" in told.what
    body = json.loads(asked.body)
    assert body["max_tokens"] == 1 and body["stream"] and body["stream_options"] == {"include_usage": True}


_EVENT = b'data: {"choices": [{"delta": {"content": "Hi"}}], "usage": null}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("model", "answer", "what", "fix"),
    [
        (
            "toy-1",
            RawAnswer(headers=STREAM_HEADERS, pieces=(_EVENT,)),
            "streams without usage",
            "stream_options.include_usage",
        ),
        ("toy-1", RawAnswer(pieces=(b'{"choices": []}',)), "", "turn off buffering"),
        (
            "toy-l",
            RawAnswer(status=404, pieces=(b'{"error": {"message": "no such model"}}',)),
            "",
            "use a model that it lists, such as 'toy-",
        ),
        ("toy-1", RawAnswer(status=429, pieces=(b"{}",)), "", "raise the limits of this account"),
    ],
)
async def test_an_answer_that_is_not_as_it_should_be_has_its_fix(
    tmp_path: Path, model: str, answer: RawAnswer, what: str, fix: str
) -> None:
    async with ToyUpstream() as toy:
        toy.raw_answers = {LIST: NAMES, CHAT: answer}
        report = await diagnose(tmp_path, NO_STORE + name_upstream(toy.base_url), "--ask", model)
    found = report.one("streaming")
    assert what in found.what and fix in found.fix


async def test_newer_models_are_asked_with_the_newer_name_of_the_limit(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        toy.raw_answers[LIST] = NAMES
        refusal = b'{"error": {"message": "Use max_completion_tokens instead."}}'
        toy.intercept = lambda seen: (
            RawAnswer(status=400, pieces=(refusal,)) if b'"max_tokens"' in seen.body else None
        )
        report = await diagnose(tmp_path, NO_STORE + name_upstream(toy.base_url), "--ask", "toy-1")
        assert len(toy.chats) == 2
    assert report.bad("streaming") == []


# Windows.


async def test_an_unknown_model_gets_a_rule_to_paste(tmp_path: Path) -> None:
    found = (await diagnose(tmp_path, NO_STORE + NO_LIST, "--model", 'my"model')).one("windows")
    assert "its window is unknown" in found.what
    assert found.fix.startswith('models: [{match: "my\\"model", context:')


async def test_a_model_that_no_upstream_lists_gets_the_nearest(tmp_path: Path) -> None:
    async with serving_models(names=["qwen3-coder", "toy-2"]) as base_url:
        text = NO_STORE + name_upstream(base_url) + "models: [{match: 'qwen*', context: 9000}]\n"
        bad = (await diagnose(tmp_path, text, "--model", "qwen3-codr")).bad("windows")
    assert "no upstream with a list of models has it" in bad[0].what
    assert "use a model that it lists, such as 'qwen3-coder'" in bad[0].fix
    # The list itself has a model that no rule and no table knows.
    assert "toy-2" in bad[1].what and 'match: "toy-2"' in bad[1].fix


async def test_models_that_a_rule_names_or_a_conversation_uses_are_looked_up(tmp_path: Path) -> None:
    text = NO_STORE + NO_LIST + "models: [{match: mine, context: 9000}, {match: 'other-*', context: 1000}]\n"
    report = await diagnose(tmp_path, text)
    assert [each.what for each in report.about("windows")] == ["mine: 9,000 tokens, from configured"]
    async with ToyUpstream() as toy, serve(make_settings(toy, more="admin: {port: 0}\n")) as product:
        await run_session(make_session(1, 1, "one_user", 100), product.base_url, toy)
        ports = f"listen: {{port: 0}}\nadmin: {{port: {product.admin_port}}}\nstore: 'memory:'\n"
        report = await diagnose(tmp_path, ports + NO_LIST)
    assert 'match: "toy-model"' in report.one("windows").fix


# Clock.


@pytest.mark.parametrize(
    ("seconds", "what"),
    [
        (45, ""),
        (-45, ""),
        (75, "behind"),
        (-75, "ahead of"),
        (3_600, "this clock is 1.0 hours behind that of up"),
    ],
)
async def test_a_clock_that_is_off_by_more_than_a_minute(tmp_path: Path, seconds: int, what: str) -> None:
    date = formatdate(time.time() + seconds, usegmt=True)
    async with serving_models(headers={"Date": date}) as base_url:
        report = await diagnose(tmp_path, NO_STORE + name_upstream(base_url))
    if what:
        assert what in report.one("clock").what and report.one("clock").fix == "timedatectl set-ntp true"
    assert what or report.bad("clock") == []


async def test_one_upstream_of_two_with_a_wrong_clock_does_not_count(tmp_path: Path) -> None:
    date = formatdate(time.time() + 9_999, usegmt=True)
    async with serving_models(headers={"Date": date}) as wrong, serving_models() as right:
        text = f"upstreams: {{a: {{base_url: '{wrong}'}}, b: {{base_url: '{right}'}}}}\n"
        report = await diagnose(tmp_path, NO_STORE + text)
    assert [each.level for each in report.about("clock")] == ["ok"]


# Ports.


@contextmanager
def taken_port() -> Iterator[int]:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


async def test_a_port_that_another_program_has(tmp_path: Path) -> None:
    with taken_port() as port:
        text = f"listen: {{port: {port}}}\nadmin: {{port: 0}}\n{NOWHERE}"
        found = (await diagnose(tmp_path, text)).one("ports")
    assert f"port {port} on 127.0.0.1 is in use" in found.what and "refold serve --port " in found.fix


async def test_an_address_of_another_machine(tmp_path: Path) -> None:
    ports = "listen: {host: 192.0.2.1, port: 8080}\nadmin: {port: 0}\n"
    found = (await diagnose(tmp_path, f"{ports}{NOWHERE}tenants: [{{name: a, keys: [k]}}]\n")).one("ports")
    assert "not an address of this machine" in found.what and "listen on 127.0.0.1" in found.fix


async def test_ports_that_this_gateway_serves_are_well(tmp_path: Path) -> None:
    more = "admin: {port: 0, token: a-token-of-this-gateway}\n"
    async with ToyUpstream() as toy, serve(make_settings(toy, more=more)) as product:
        text = (
            f"listen: {{port: {product.port}}}\nadmin: {{port: {product.admin_port}, token: %s}}\n{NOWHERE}"
        )
        same = await diagnose(tmp_path, text % "a-token-of-this-gateway")
        other = await diagnose(tmp_path, text % "another-long-token")
    told = [each.what for each in same.about("ports")]
    assert same.bad("ports") == [] and len(told) == 2
    assert all("is served by a gateway that is well" in what for what in told)
    assert "another admin.token" in other.one("ports").what and "another-long-token" not in other.text


# What this machine gives a process.


async def test_descriptors_that_are_too_few_are_counted(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        pytest.skip("there is no limit")
    report = await diagnose(tmp_path, f"{NO_STORE}{NO_LIST}bounds: {{connections: {hard}}}\n")
    assert f"LimitNOFILE={2 * hard + 256}" in report.one("process").fix
    few = await diagnose(tmp_path, f"{NO_STORE}{NO_LIST}bounds: {{connections: 1}}\n")
    assert few.bad("process") == [] and any("cores: " in each.what for each in few.about("process"))


# Who can reach the ports.


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        (PLAIN + "listen: {host: 0.0.0.0, port: 0}\n", "", "listen: {host: 127.0.0.1}"),
        (PLAIN + "admin: {port: 0, token: hunter2}\n", "", "openssl rand -hex 32"),
        (
            PLAIN
            + TENANT
            + "policies: {default: {}, open: {show_texts: true}, bare: {show_texts: true}}\n"
            + "admin: {port: 0}\n",
            "by policy open, bare",
            "",
        ),
        (KEYED.replace("https:", "http:") + TENANT, "", "base_url: https://x.example/v1"),
    ],
)
async def test_what_others_can_reach_has_its_fix(tmp_path: Path, text: str, what: str, fix: str) -> None:
    report = await diagnose(tmp_path, f'store: "memory:"\n{text}')
    found = report.bad("exposure")[0]
    assert found.level == "warning" and what in found.what and fix in found.fix
    assert len(report.bad("exposure")) == 1 and "hunter2" not in report.text


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (PLAIN, "it shows texts of conversations on this machine"),
        (PLAIN + "policies: {default: {show_texts: false}}\n", "it shows no texts"),
        (KEYED + TENANT + "admin: {token: 0123456789abcdef0123}\n", ""),
    ],
)
async def test_what_is_closed_is_well(tmp_path: Path, text: str, what: str) -> None:
    report = await diagnose(tmp_path, f'store: "memory:"\n{text}')
    assert report.bad("exposure") == [] and what in report.about("exposure")[-1].what
