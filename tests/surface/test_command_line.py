"""How commands are used: wrong words, help, exit statuses, the health check, and the tenants of a store."""

import asyncio
import hashlib
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from socket import create_server

import pytest

from tests.surface.written import PLAIN, write
from tests.toy.agent import make_session
from tests.toy.house import ADMIN, make_settings
from tests.toy.product import Result, command, serve
from tests.toy.running import Pace, run_session
from tests.toy.upstream import ToyUpstream

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
_COMMANDS = (
    *("serve", "run", "demo", "doctor", "replay", "export", "models", "check", "conversations", "top"),
    *("tenants", "schema", "health"),
)


@pytest.mark.parametrize(
    ("word", "nearest"), [("chek", "'check'"), ("model", "'models'"), ("conversation", "'conversations'")]
)
def test_an_unknown_command_is_answered_with_the_nearest(word: str, nearest: str) -> None:
    result = command(word)
    assert result.status == 2 and f"there is no command '{word}'; the nearest is {nearest}" in result.err


def test_a_word_that_is_near_no_command_is_answered_with_all() -> None:
    result = command("xyz")
    assert result.status == 2 and "the nearest" not in result.err
    assert result.err.rstrip().endswith(f"Commands: {', '.join(_COMMANDS)}")


def test_without_a_command_the_help_is_shown() -> None:
    result = command()
    assert result.status == 2 and "refold demo" in result.err


@pytest.mark.parametrize(
    "words", [(name,) for name in _COMMANDS] + [("conversations", "show"), ("tenants", "purge")]
)
def test_the_help_of_each_command_fits_a_terminal_and_names_the_exit_status(words: tuple[str, ...]) -> None:
    result = command(*words, "--help", env={"COLUMNS": "80"})
    assert result.status == 0 and max(map(len, result.out.splitlines())) <= 80
    assert "exit status: 0" in result.out or words[-1] in ("schema", "show", "purge")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        *(
            (f"serve --workers={n}", "a number of processes, from 1 to 1000")
            for n in ("0", "-1", "1001", "two")
        ),
        *((f"serve --workers={n}", "a number of processes, from 1 to 1000") for n in ("1.5", "auto", "")),
        ("serve --log-level loud", "invalid choice: 'loud'"),
        ("serve --watch", "--watch needs the --config FILE"),
        ("models --ask", "--ask needs the NAME of a model"),
        ("run --", "COMMAND"),
        ("conversations show", "ID"),
        ("conversations compact", "ID"),
        ("conversations delete", "ID"),
        ("conversations search 3f", "QUERY"),
        ("conversations search 3f retry --limit 51", "must be 50 at most"),
        ("conversations list --limit 0", "--limit"),
        ("conversations list --limit \u00b2", "--limit"),
        ("conversations list --limit 1.5", "--limit"),
        ("replay", "FILE"),
        ("replay a --window 0", "--window"),
        ("export ../x", "export"),
        ("check", "FILE"),
        ("tenants purge", "NAME"),
    ],
)
def test_wrong_usage_ends_with_status_2_and_says_why(words: str, expected: str) -> None:
    result = command(*words.split())
    assert (result.status, result.out) == (2, "") and expected in result.err
    assert "Traceback" not in result.err


# The health check, beside a server that listens where the options say.


@contextmanager
def responding(status: int) -> Iterator[int]:
    """The port of a server that responds so to /healthz."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_a_gateway_that_responds_is_well(tmp_path: Path, host: str) -> None:
    with responding(200) as port:
        path = write(tmp_path, f"listen: {{host: {host}, port: {port}}}\n")
        for words in (("--config", path), ("--port", str(port)), ("--port", str(port), "--workers", "2")):
            assert command("health", *words).status == 0


def test_a_gateway_that_is_not_well_says_why() -> None:
    with responding(503) as port:
        ill = command("health", "--port", str(port))
        assert ill.status == 1 and "status 503" in ill.err
    with closing(create_server(("127.0.0.1", 0))) as unused:
        port = unused.getsockname()[1]
    away = command("health", "--port", str(port), "--host", "0.0.0.0")
    assert away.status == 1 and f"no response from 127.0.0.1 port {port}" in away.err
    unknown = command("health", "--port", "0")
    assert unknown.status == 1 and "only its log names" in unknown.err


@linux_only
def test_the_options_of_a_process_are_followed(tmp_path: Path) -> None:
    """As in a container, where the options of process 1 are unknown to the health check."""
    with responding(200) as port:
        (tmp_path / "gateway.yaml").write_text(f"listen: {{port: {port}}}\n")
        # An init with the gateway's command line behind its own, in a folder of its own.
        code = "print(flush=True); input()"
        words = ["-c", code, "--", "gateway", "serve", "--host", "0.0.0.0", "--config", "gateway.yaml"]
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, *words], cwd=tmp_path, stdin=pipe, stdout=pipe) as init:
            # Until its line has come, its command line may be empty.
            assert init.stdout is not None and init.stdout.readline()
            assert command("health", "--of-process", str(init.pid)).status == 0
            init.communicate(b"\n")
    gone = command("health", "--of-process", str(init.pid))
    assert gone.status == 1 and "cannot be read" in gone.err
    other = command("health", "--of-process", str(os.getpid()))
    assert other.status == 2 and "is not a `refold serve`" in other.err


# Tenants.

_TWO = "tenants: [{name: acme, keys: [sk-acme]}, {name: bolt, keys: [sk-bolt]}]\n"


def test_the_tenants_of_the_settings_are_listed(tmp_path: Path) -> None:
    keyed = PLAIN.replace("}", ", api_key: k}")
    path = write(tmp_path, keyed + _TWO)
    assert command("tenants", "list", "--config", path).out == "acme\nbolt\n"
    assert '"name": "bolt"' in command("tenants", "list", "--config", path, "--json").out
    nobody = command("tenants", "list", "--config", write(tmp_path, PLAIN))
    assert nobody.status == 0 and "each caller key is a tenant" in nobody.out


async def play(folder: Path, toy: ToyUpstream, *keys: str, tenants: str = _TWO) -> str:
    """A store in which each of these keys has a conversation, and the path of the settings."""
    settings = make_settings(toy, store=f"disk:{folder}/state", more=ADMIN + tenants)
    async with serve(settings) as product:
        for seed, key in enumerate(keys):
            run = await run_session(make_session(4, seed), product.base_url, toy, pace=Pace(key=key))
            assert run.failed == []
        await product.at_rest()
    return write(folder, settings.replace("port: 0", "port: 1"))


async def purge(path: str, *words: str) -> Result:
    return await asyncio.to_thread(command, "tenants", "purge", "--config", path, *words)


async def test_a_tenant_is_purged_and_no_other(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        path = await play(tmp_path, toy, "sk-acme", "sk-bolt")
    first, again, other = [await purge(path, name, "--yes") for name in ("acme", "acme", "bolt")]
    assert [each.status for each in (first, again, other)] == [0, 0, 0]
    told = [each.err.partition(" records of state")[0] for each in (first, again, other)]
    assert told[1] == "deleted of acme: 0" and told[0] != told[1]
    assert told[2].startswith("deleted of bolt: ") and told[2] != "deleted of bolt: 0"


async def test_a_tenant_that_the_settings_do_not_name_is_purged_by_its_old_name_or_its_hash(
    tmp_path: Path,
) -> None:
    digest = hashlib.sha256(b"sk-anybody").hexdigest()
    async with ToyUpstream() as toy:
        path = await play(tmp_path, toy, "sk-acme")
        text = (await asyncio.to_thread(Path(path).read_text)).replace(
            _TWO, "tenants: [{name: bolt, keys: [k]}]\n"
        )
        gone = write(tmp_path, text)
        assert (await purge(gone, "acme", "--yes")).status == 2
        found = await purge(gone, "acme", "--removed", "--yes")
        assert found.status == 0 and "deleted of acme: 0" not in found.err
        path = await play(tmp_path, toy, "sk-anybody", tenants="")
    found = await purge(path, f"key:{digest}", "--yes")
    assert found.status == 0 and f"deleted of key:{digest}: 0" not in found.err


def test_an_unknown_tenant_is_refused_with_the_nearest_name_and_no_store_is_made(tmp_path: Path) -> None:
    text = f'{PLAIN.replace("}", ", api_key: k}")}store: "disk:{tmp_path}/state"\nadmin: {{port: 1}}\n{_TWO}'
    path = write(tmp_path, text)
    result = command("tenants", "purge", "--config", path, "acmee", "--yes")
    assert result.status == 2 and "no tenant 'acmee'; the nearest is 'acme'" in result.err
    assert command("tenants", "purge", "--config", path, "acme", "--yes").status == 0
    assert not (tmp_path / "state").exists()


def test_nothing_is_purged_without_a_yes(tmp_path: Path) -> None:
    """Without a terminal nobody can type the name again."""
    path = write(tmp_path, f'{PLAIN.replace("}", ", api_key: k}")}store: "memory:"\n{_TWO}')
    result = command("tenants", "purge", "--config", path, "acme")
    assert (result.status, result.err) == (1, "gateway: nothing was deleted\n")


def test_the_demo_shows_a_compaction_and_ends_well() -> None:
    result = command("demo")
    assert result.status == 0, result.err
    assert "compact" in result.out
