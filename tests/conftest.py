"""Settings for the whole suite, its stores, and the tables that tests fill in.

Other fixtures live beside their tests.
"""

import asyncio
import gc
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import settings

from tests.examples import DEFAULT, EXHAUSTIVE, register_profiles
from tests.rules.ceilings import find_excess_seconds
from tests.toy.redis_server import RedisServer, requires_redis, running_redis

Note = Callable[[str, str], None]
_ROW = "row of "
_STARTED = pytest.StashKey[float]()
_MOST_GARBAGE_BYTES = 1 << 30
# Those that outlive a gateway: what a test with a restart needs.
STORES = ("disk", "redis")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--store",
        choices=("memory", "redis"),
        default="memory",
        help="the store of the houses in tests/through; redis: a real server, empty for each module",
    )
    parser.addoption(
        "--random-order",
        metavar="SEED",
        help="shuffle the modules, and the tests in each of them: a failure that it shows is one of order",
    )


def pytest_configure(config: pytest.Config) -> None:
    """`-m exhaustive` also chooses the hypothesis profile; `--hypothesis-profile` wins over it."""
    config.stash[_STARTED] = time.perf_counter()
    register_profiles()
    if config.getoption("--hypothesis-profile") is None:
        words = str(config.getoption("-m")).replace("not exhaustive", "").split()
        settings.load_profile(EXHAUSTIVE if "exhaustive" in words else DEFAULT)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("--random-order")
    if seed is None:
        return
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.nodeid.partition("::")[0], []).append(item)
    rng = random.Random(seed)
    items[:] = [
        item
        for name in rng.sample(sorted(modules), len(modules))
        for item in rng.sample(modules[name], len(modules[name]))
    ]


@pytest.fixture
def note_row(record_property: Callable[[str, object], None]) -> Note:
    """Adds a row to the table with this heading. All tables are printed at the end of the run."""

    def note(heading: str, row: str) -> None:
        record_property(_ROW + heading, row)

    return note


@pytest.fixture(scope="session")
def redis_of_session() -> Iterator[RedisServer]:
    """One server for all tests of this process."""
    (is_missing,) = requires_redis.args
    if is_missing:
        pytest.skip(requires_redis.kwargs["reason"])
    with asyncio.Runner() as runner:
        running = running_redis()
        server = runner.run(running.__aenter__())
        try:
            yield server
        finally:
            runner.run(running.__aexit__(None, None, None))


@pytest.fixture
def empty_redis(redis_of_session: RedisServer) -> RedisServer:
    """The server of this process, with nothing in it."""
    redis_of_session.empty()
    return redis_of_session


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """Commands set the levels of loggers for their whole process, and here it is the tests' own."""
    loggers = [logging.getLogger(name) for name in ("", "gateway", "httpx2")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


class _GarbageBound:
    """Gateways end as garbage in cycles, which Python collects by its number of objects, however large."""

    def __init__(self) -> None:
        self._kept_bytes = _count_resident_bytes()

    def enforce(self) -> None:
        if _count_resident_bytes() > self._kept_bytes + _MOST_GARBAGE_BYTES:
            gc.collect()
            self._kept_bytes = _count_resident_bytes()


def _count_resident_bytes() -> int:
    """0 where the system does not say."""
    status = Path("/proc/self/statm")
    return int(status.read_text("utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE") if status.exists() else 0


@pytest.fixture(scope="session")
def garbage_bound() -> _GarbageBound:
    return _GarbageBound()


@pytest.fixture(autouse=True)
def bounded_garbage(garbage_bound: _GarbageBound) -> Iterator[None]:
    yield
    garbage_bound.enforce()


@pytest.fixture(scope="module")
def through_store(request: pytest.FixtureRequest) -> str:
    """The URL that `--store` stands for, of an empty store."""
    if request.config.getoption("--store") == "memory":
        return "memory:"
    redis: RedisServer = request.getfixturevalue("redis_of_session")
    redis.empty()
    return redis.patient_url


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty store that outlives its gateways: on disk, and on a Redis."""
    if request.param == "disk":
        return f"disk:{tmp_path / 'state'}"
    redis: RedisServer = request.getfixturevalue("empty_redis")
    return redis.patient_url


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A whole run of `make test` that takes too long fails."""
    is_whole = not hasattr(session.config, "workerinput") and session.exitstatus == pytest.ExitCode.OK
    if is_whole and _find_excess(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _find_excess(config: pytest.Config) -> str | None:
    return find_excess_seconds(_count_seconds(config), os.environ)


def _count_seconds(config: pytest.Config) -> float:
    return time.perf_counter() - config.stash[_STARTED]


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    stats = terminalreporter.stats
    reports = [report for outcome in ("passed", "failed") for report in stats.get(outcome, ())]
    noted = [noted for report in reports if report.when == "call" for noted in report.user_properties]
    tables: dict[str, list[str]] = {}
    for name, row in noted:
        if name.startswith(_ROW):
            tables.setdefault(name.removeprefix(_ROW), []).append(str(row))
    for heading, rows in sorted(tables.items()):
        terminalreporter.write_line("\n" + "\n".join([heading, *sorted(rows)]))
    terminalreporter.write_line(f"\n{_count_seconds(config):.0f} seconds with collection")
    if (excess := _find_excess(config)) is not None:
        terminalreporter.write_line(excess, red=True)
