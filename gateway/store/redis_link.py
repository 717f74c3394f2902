"""The way to a Redis server: everything that is asked within a tick is one pipeline, at most three under way.

There is no breaker. Patience counts from when the silence of the server began, so a silent server costs one
wait and not one for each request; and a late reply is still read. Knows nothing of records.
"""

import asyncio
import hashlib
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from gateway.store.interface import SOON, StoreRefused, Unknown, Unusable
from gateway.store.redis_address import Address

_log = logging.getLogger("gateway.store.redis")

# Pipelines under way, each on a connection of its own. What is asked meanwhile goes together.
_LANES: Final = 3
_PIPELINE_CALLS: Final = 256
_PIPELINE_BYTES: Final = 1 << 20
# What is sent within the time of a small round trip; more gets more time.
_BYTES_PER_TIMEOUT: Final = 512 << 10
# Connecting takes several round trips, and TLS more. Only the start of the gateway waits for it.
_CONNECT_SECONDS: Final = 1.0
# A reply that is later than this will not come: the other end of the connection is gone.
_LOST_SECONDS: Final = 10.0
# Whether the server is there, and still holds its records, is asked so often; and so often while it is away.
_BEAT_SECONDS, _PROBE_SECONDS = 1.0, 0.02
_PAUSES_SECONDS: Final = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
# Of a wait. A slice that this process was too busy for counts once, however long it was: its replies lie
# there unread, which must not look like a slow server.
_SLICES: Final = 5
# The part of a wait that is left to one who asks a server that was silent for long, but may have answered
# while this process was busy.
_LEAST_PATIENCE: Final = 0.05
# Closing a connection takes less.
_CANCEL_SECONDS: Final = 1.0
# The server is asked for a sign of life so often on the connection for news; without any it is lost.
_PING_SECONDS: Final = 1.0
_SILENT_PINGS: Final = 3

Argument = str | bytes | int
# What a server answers; a refusal is a value, because one call of many may fail.
ServerReply = Any


@dataclass(frozen=True)
class ServerRefusal:
    """Why a server cannot be used, or refused a command. Texts of a server may hold keys, so only what is
    said here is kept. is_final: it, or who issued its certificate, has said no; trying again changes nothing.
    ends: after it no call has a chance on the same connection.
    """

    reason: str
    is_final: bool = False
    ends: bool = False


_NO_SCRIPT: Final = ServerRefusal("it does not know the script")
_FULL: Final = ServerRefusal("its memory is full")
_CANNOT_SAVE: Final = ServerRefusal("it cannot save to its disk, or has too few replicas")
_NO_PRIMARY: Final = ServerRefusal("its primary or its cluster is down", ends=True)
_BUSY: Final = ServerRefusal("it is busy with a script, or loads its data", ends=True)
_CLUSTER: Final = ServerRefusal("it is a node of a cluster", is_final=True, ends=True)
_DENIED: Final = ServerRefusal("its ACL lacks a permission", is_final=True)
_OTHER: Final = ServerRefusal("it refused a command")
_LATE: Final = ServerRefusal("it does not answer in time")
_CLASSES: Final = (
    (NoScriptError, _NO_SCRIPT),
    (OutOfMemoryError, _FULL),
    (ReadOnlyError, ServerRefusal("it is a read-only replica", ends=True)),
    (MasterDownError, _NO_PRIMARY),
    (ClusterDownError, _NO_PRIMARY),
    (AskError, _CLUSTER),  # MOVED is one, too
    (NoPermissionError, _DENIED),
    (AuthenticationError, ServerRefusal("it does not accept user and password", is_final=True, ends=True)),
    (BusyLoadingError, _BUSY),
)
_CODES: Final = {
    "MISCONF": _CANNOT_SAVE,
    "NOREPLICAS": _CANNOT_SAVE,
    "BUSY": _BUSY,
    "OOM": _FULL,
    "NOPERM": _DENIED,
}
# Of the connection, by what caused its error. The first that fits counts.
_CAUSES: Final = (
    (ssl.SSLCertVerificationError, ServerRefusal("its TLS certificate is not accepted", is_final=True)),
    (ssl.SSLError, ServerRefusal("TLS failed")),
    (socket.gaierror, ServerRefusal("its name is not found")),
    (ConnectionRefusedError, ServerRefusal("connection refused")),
    (TimeoutError, _LATE),
)
# A server of another kind may send anything; uvloop raises RuntimeError for a socket that was closed.
FAILURES: Final = (RedisError, OSError, EOFError, ValueError, RuntimeError)


def translate(error: RedisError) -> ServerRefusal:
    """By the class that the library gives an error, else by the code that its text begins with."""
    for known, refusal in _CLASSES:
        if isinstance(error, known):
            return refusal
    text = str(error)
    # What a command of a script was refused for.
    if "ACL failure in script" in text or "The user executing the script" in text:
        return _DENIED
    if "non local key in a cluster" in text:
        return _CLUSTER
    if "while the cluster is down" in text:
        return _NO_PRIMARY
    return _CODES.get(text.partition(" ")[0], _OTHER)


def explain(error: BaseException) -> ServerRefusal:
    """In this order: what the server said · the certificate · the name · the port · all else."""
    if isinstance(error, RedisError):
        refusal = translate(error)
        if refusal is not _OTHER:
            return refusal
        if isinstance(error, ResponseError):
            return ServerRefusal("it refuses the database of this number", is_final=True)
    cause: BaseException | None = error
    while cause is not None:
        for known, refusal in _CAUSES:
            if isinstance(cause, known):
                return refusal
        cause = cause.__cause__ or cause.__context__
    return ServerRefusal("the connection was lost")


def make_client(address: Address, *, retries: int = 1) -> Redis:
    """With one connection. A connection that was closed while it was idle is opened again (`retries`)."""
    options: dict[str, Any] = {}
    if address.uses_tls:
        options = {
            "ssl": True,
            "ssl_ca_certs": address.ca_file and str(address.ca_file),
            "ssl_certfile": address.certificate_file and str(address.certificate_file),
            "ssl_keyfile": address.key_file and str(address.key_file),
            "ssl_check_hostname": True,
        }
    client = Redis(
        host=address.host,
        port=address.port,
        db=address.database,
        username=address.user,
        password=address.password,
        # The older protocol needs no more rights than AUTH.
        protocol=2,
        driver_info=None,
        max_connections=1,
        # With one, the library sends within `wait_for`, which loses a cancellation in Python 3.11: the
        # connection is opened once more, and nobody closes it. Whoever asks limits the time.
        socket_timeout=None,
        socket_connect_timeout=_CONNECT_SECONDS,
        # A connection that listens pings on its own account, see `RedisNews`.
        health_check_interval=30 if retries else 0,
        retry=Retry(NoBackoff(), retries, supported_errors=(ConnectionError,)),
        **options,
    )
    # Replies as the server gave them.
    client.response_callbacks.clear()
    return client


@dataclass(frozen=True)
class Script:
    text: str
    # The server names scripts by their SHA-1.
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "digest", digest)


@dataclass(eq=False, slots=True)
class RedisCall:
    """make: the arguments, when it is sent. script: None for a plain command. is_bulk: goes alone.

    is_wanted: somebody still waits for the reply, or it must reach the server in any case.
    """

    make: Callable[[], Sequence[Argument]]
    future: "asyncio.Future[ServerReply]"
    script: Script | None = None
    is_bulk: bool = False
    is_wanted: bool = True
    is_second_try: bool = False
    was_in_time: bool = False

    def render(self) -> tuple[Argument, ...]:
        """A script travels in full if the server does not know it."""
        arguments = self.make()
        if self.script is None:
            return tuple(arguments)
        first = ("EVAL", self.script.text) if self.is_second_try else ("EVALSHA", self.script.digest)
        return (*first, 0, *arguments)


async def wait_sliced(future: "asyncio.Future[Any]", seconds: float) -> bool:
    """Whether it was done in time. It goes on in any case."""
    for _ in range(_SLICES):
        if future.done():
            break
        await asyncio.wait({future}, timeout=seconds / _SLICES)
    return future.done()


class RedisLink:
    """Open it to see whether the server is there; then ask."""

    def __init__(self, address: Address) -> None:
        self.shown = address.shown
        self._address = address
        self._seconds = address.timeout_ms / 1000
        self._queue: deque[RedisCall] = deque()
        self._has_calls = asyncio.Event()
        self._in_air = 0
        # Since when nothing was heard although something was asked.
        self._silent_since: float | None = None
        self._away: ServerRefusal | None = None
        self._is_lost = asyncio.Event()
        self._lost_at = 0.0
        self._first: asyncio.Future[ServerRefusal | None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._clients: list[Redis] = []

    @property
    def is_away(self) -> bool:
        return self._away is not None

    async def open(
        self, make_check: Callable[[], RedisCall], note_check: Callable[[ServerReply], None]
    ) -> None:
        """Returns after the first try. Raises StoreRefused if the server refuses this gateway. To be closed
        in any case.

        make_check, note_check: what the server is asked from time to time, and the reply.
        """
        self._first = asyncio.get_running_loop().create_future()
        for _ in range(_LANES):
            client = make_client(self._address)
            self._clients.append(client)
            self._tasks.append(asyncio.create_task(self._run_lane(client)))
        self._tasks.append(asyncio.create_task(self._beat(make_check, note_check)))
        failure = await self._first
        if failure is not None and failure.is_final:
            raise StoreRefused(f"store {self.shown} refuses this gateway: {failure.reason}")

    async def close(self) -> None:
        await _end(self._tasks)
        # Not by the tasks: the second cancellation of one that is slow would keep connections open.
        for client in self._clients:
            await _close_client(client)
        while self._queue:
            self._queue.popleft().future.cancel()

    # Asking

    def send(
        self, script: Script | None, make: Callable[[], Sequence[Argument]], *, is_bulk: bool = False
    ) -> RedisCall:
        """make: is called when the call is sent, and again when it is sent again."""
        call = RedisCall(make, asyncio.get_running_loop().create_future(), script, is_bulk)
        self._queue.append(call)
        self._note_asked()
        self._has_calls.set()
        return call

    async def ask(self, call: RedisCall, wait: float) -> ServerReply:
        """Raises Unknown once the server has been silent for so long, and Unusable if it refuses."""
        try:
            if not await wait_sliced(call.future, self.find_patience(wait)) or call.future.cancelled():
                raise Unknown("the store does not answer in time")
        finally:
            call.is_wanted = False
        return take_reply(call)

    def check_patience(self, wait: float) -> None:
        """Raises Unknown if asking is in vain."""
        if self.find_patience(wait) <= 0:
            raise Unknown("the store is away")

    def find_patience(self, wait: float) -> float:
        """Seconds that one who would wait for so long waits now."""
        limit = self._seconds if wait <= SOON else max(wait, self._seconds)
        since = self._silent_since
        silence = 0.0 if since is None else asyncio.get_running_loop().time() - since
        if self._away is None:
            return max(limit - silence, limit * _LEAST_PATIENCE)
        return 0.0 if limit <= self._seconds else max(0.0, limit - silence)

    def _note_asked(self) -> None:
        if self._silent_since is None:
            self._silent_since = asyncio.get_running_loop().time()

    def _note_heard(self) -> None:
        is_waiting = self._in_air or self._queue
        self._silent_since = asyncio.get_running_loop().time() if is_waiting else None

    # Lanes

    async def _run_lane(self, client: Redis) -> None:
        while True:
            try:
                await self._keep_flying(client)
            except Exception as error:  # noqa: BLE001 - the edge: no fault takes a lane away for good
                text = "store %s: a connection has failed (%s) and is begun anew"
                _log.error(text, self.shown, type(error).__name__)
                await asyncio.sleep(_PROBE_SECONDS)

    async def _keep_flying(self, client: Redis) -> None:
        failures = 0
        while True:
            is_connected = await self._connect(client)
            while is_connected and await self._fly(client, await self._next_calls()):
                failures = 0
            await _close_client(client)
            await asyncio.sleep(_PAUSES_SECONDS[min(failures, len(_PAUSES_SECONDS) - 1)])
            failures += 1

    async def _connect(self, client: Redis) -> bool:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await client.ping()
        except FAILURES as error:
            self._note_away(explain(error))
            return False
        return True

    async def _next_calls(self) -> list[RedisCall]:
        while not self._queue:
            self._has_calls.clear()
            await self._has_calls.wait()
        calls: list[RedisCall] = []
        while self._queue and len(calls) < _PIPELINE_CALLS and not (calls and self._queue[0].is_bulk):
            call = self._queue.popleft()
            if call.is_wanted:
                calls.append(call)
            if call.is_bulk:
                break
        return calls

    async def _fly(self, client: Redis, calls: list[RedisCall]) -> bool:
        """False if the connection must be opened again; the calls will be sent again then."""
        pipeline, size = client.pipeline(transaction=False), 0
        for at, call in enumerate(calls):
            if size > _PIPELINE_BYTES:
                self._send_again(calls[at:])
                del calls[at:]
                break
            command = call.render()
            size += sum(len(argument) for argument in command if isinstance(argument, bytes))
            pipeline.execute_command(*command)
        self._in_air += 1
        replies: Sequence[ServerReply] | None = None
        parts = 1 + size // _BYTES_PER_TIMEOUT
        lateness = asyncio.create_task(self._note_late(self._seconds * parts))
        try:
            async with asyncio.timeout(_LOST_SECONDS * parts):
                replies = await pipeline.execute(raise_on_error=False)
        except FAILURES:
            return False
        finally:
            if replies is None:
                self._send_again(calls)
            self._in_air -= 1
            is_in_time = not lateness.done()
            lateness.cancel()
        self._note_heard()
        return self._deliver(calls, replies, is_in_time)

    async def _note_late(self, seconds: float) -> None:
        """What is under way is waited for in any case."""
        for _ in range(_SLICES):
            await asyncio.sleep(seconds / _SLICES)
        self._note_away(_LATE)

    def _deliver(self, calls: Sequence[RedisCall], replies: Sequence[ServerReply], is_in_time: bool) -> bool:
        again: list[RedisCall] = []
        ending: ServerRefusal | None = None
        for call, reply in zip(calls, replies, strict=True):
            answer = translate(reply) if isinstance(reply, RedisError) else reply
            call.was_in_time = is_in_time
            if isinstance(answer, ServerRefusal) and answer.ends:
                ending = answer
                again.append(call)
            elif answer is _NO_SCRIPT and not call.is_second_try:
                call.is_second_try = True
                again.append(call)
            elif not call.future.done():
                call.future.set_result(answer)
        self._send_again(again)
        if ending is not None:
            self._note_away(ending)
        return ending is None

    def _send_again(self, calls: Sequence[RedisCall]) -> None:
        self._queue.extendleft(reversed(calls))
        self._has_calls.set()

    # Whether it is there

    async def _beat(
        self, make_check: Callable[[], RedisCall], note_check: Callable[[ServerReply], None]
    ) -> None:
        while True:
            call = make_check()
            reply = await call.future
            if isinstance(reply, ServerRefusal) and reply is not _CANNOT_SAVE:
                self._note_away(reply)
            elif call.was_in_time:
                note_check(reply)
                self._note_back()
            if self._away is not None and not self._away.is_final:
                await asyncio.sleep(_PROBE_SECONDS)
                continue
            self._is_lost.clear()
            try:
                async with asyncio.timeout(_BEAT_SECONDS):
                    await self._is_lost.wait()
            except TimeoutError:
                pass

    def _note_away(self, failure: ServerRefusal) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_result(failure)
        before, self._away = self._away, failure
        self._is_lost.set()
        self._note_asked()
        if before is None:
            self._lost_at = asyncio.get_running_loop().time()
        if failure.is_final and not (before and before.is_final):
            text = "store %s refuses this gateway (%s): state is in memory only"
            _log.error(text, self.shown, failure.reason)
        elif before is None:
            text = "store %s is away (%s): state is in memory until it is back"
            _log.warning(text, self.shown, failure.reason)
        elif before.is_final:
            self._away = before

    def _note_back(self) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
        if self._away is not None:
            seconds = asyncio.get_running_loop().time() - self._lost_at
            _log.info("store %s is back after %.1f s", self.shown, seconds)
        self._away = None


async def _end(tasks: Sequence["asyncio.Task[None]"]) -> None:
    """The client library may lose a cancellation (in the middle of a TLS handshake), so it is repeated."""
    while running := {task for task in tasks if not task.done()}:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=_CANCEL_SECONDS)


async def _close_client(client: Redis) -> None:
    """Its next call connects it again."""
    with suppress(*FAILURES):
        await client.connection_pool.disconnect()


def take_reply(call: RedisCall) -> ServerReply:
    """Of a call that is done. Raises Unusable if it was refused."""
    reply = call.future.result()
    if isinstance(reply, ServerRefusal):
        raise Unusable(reply.reason)
    return reply


class RedisNews:
    """A connection that only listens. What is published while there is none is lost, and `gap` says so."""

    def __init__(
        self, address: Address, channel: str, *, hear: Callable[[bytes], None], gap: Callable[[], None]
    ) -> None:
        self._channel = channel
        self._hear = hear
        self._gap = gap
        # Of the last try.
        self.failure: ServerRefusal | None = None
        self.has_tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._client = make_client(address, retries=0)
        self._pubsub = self._client.pubsub()

    def open(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        await _end([self._task] if self._task is not None else [])
        await self._pubsub.aclose()  # type: ignore[no-untyped-call]  # the library's own
        await _close_client(self._client)

    async def _run(self) -> None:
        failures = 0
        while True:
            failures += 1
            try:
                await self._subscribe(self._pubsub)
                failures = 0
                await self._listen(self._pubsub)
            except FAILURES as error:
                # Whether the server is there is logged where calls are sent.
                self.failure = explain(error)
            await self._pubsub.aclose()  # type: ignore[no-untyped-call]  # the library's own
            if failures == 0:
                self._gap()
            self.has_tried.set()
            await asyncio.sleep(_PAUSES_SECONDS[min(failures, len(_PAUSES_SECONDS) - 1)])

    async def _subscribe(self, pubsub: PubSub) -> None:
        """Raises one of FAILURES."""
        async with asyncio.timeout(_CONNECT_SECONDS):
            await pubsub.subscribe(self._channel)
            while (await pubsub.get_message(timeout=_CONNECT_SECONDS)) is None:
                pass
        self.failure = None
        if self.has_tried.is_set():
            self._gap()
        self.has_tried.set()

    async def _listen(self, pubsub: PubSub) -> None:
        """Until it is lost, or silent for too long. Raises one of FAILURES."""
        silent = 0
        while silent < _SILENT_PINGS:
            message = await pubsub.get_message(timeout=_PING_SECONDS)
            if message is None:
                silent += 1
                await pubsub.ping()
                continue
            silent = 0
            if message["type"] == "message" and isinstance(message["data"], bytes):
                self._hear(message["data"])
