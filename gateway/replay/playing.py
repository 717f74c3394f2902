"""Plays sources, one after another in one process, or spread over several.

Processes are forked, so that the settings need no way to them; what comes of a source returns as bytes.
"""

import asyncio
import multiprocessing
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Final

import msgspec

from gateway.replay.errors import NotARecording, ReplayError
from gateway.replay.runs import Played
from gateway.replay.simulation import ReplayGateway, ReplaySession, open_gateways
from gateway.replay.sources import Source, read_source
from gateway.settings import Settings

# Less is played before another process has begun.
_LEAST_BYTES: Final = 1_000_000
# Each takes some hundred megabytes.
_MOST_PROCESSES: Final = 8
_PROGRESS_REQUESTS: Final = 20

# Is told how many bytes of the files have been played since it was last told.
OnProgress = Callable[[int], None]


class PlayedSource(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A recording under every policy, in their order."""

    number: int
    name: str
    kind: str = ""
    skipped: int = 0
    # Of the files, and of the bodies of all requests.
    file_bytes: int
    request_bytes: int = 0
    played: tuple[Played, ...] = ()
    # Why it was not played.
    failure: str | None = None


class _Progress(msgspec.Struct, frozen=True, tag=True):
    bytes: int


def count_processes(sources: Sequence[Source]) -> int:
    if sys.platform != "linux" or sum(source.size_bytes for source in sources) < _LEAST_BYTES:
        return 1
    return min(len(os.sched_getaffinity(0)), len(sources), _MOST_PROCESSES)


def play_all(
    sources: Sequence[Source],
    choices: Mapping[str, Settings],
    model: str,
    on_progress: OnProgress,
    processes: int = 1,
) -> list[PlayedSource]:
    """In the order of the sources. model: of recordings that name none."""
    numbered = list(enumerate(sources))
    if processes <= 1:
        played: list[PlayedSource] = []
        run_loop(_play_in(numbered, choices, model, played.append, on_progress))
    else:
        played = _play_apart(_share_out(numbered, processes), choices, model, on_progress)
    return sorted(played, key=lambda each: each.number)


async def _play_in(
    sources: Sequence[tuple[int, Source]],
    choices: Mapping[str, Settings],
    model: str,
    on_played: Callable[[PlayedSource], None],
    on_progress: OnProgress,
) -> None:
    async with open_gateways(choices) as gateways:
        for number, source in sources:
            on_played(await play_source(gateways, number, source, model, on_progress))


async def play_source(
    gateways: Sequence[ReplayGateway], number: int, source: Source, model: str, on_progress: OnProgress
) -> PlayedSource:
    try:
        recording = read_source(source, model)
    except NotARecording as error:
        on_progress(source.size_bytes)
        return PlayedSource(number=number, name=source.name, file_bytes=source.size_bytes, failure=str(error))
    # A tenant for each policy, too: they share what is kept in memory.
    sessions = [ReplaySession(gateway, f"replay-{number}-{place}") for place, gateway in enumerate(gateways)]
    told = request_bytes = 0
    for done, request in enumerate(recording.list_requests(), start=1):
        request_bytes += len(request.body)
        for session in sessions:
            await session.play(request)
        if done % _PROGRESS_REQUESTS == 0:
            so_far = source.size_bytes * done // max(done, recording.count)
            on_progress(so_far - told)
            told = so_far
    on_progress(source.size_bytes - told)
    return PlayedSource(
        number=number,
        name=source.name,
        kind=recording.kind,
        skipped=recording.skipped,
        file_bytes=source.size_bytes,
        request_bytes=request_bytes,
        played=tuple(session.finish(source.name) for session in sessions),
    )


def run_loop(main: Coroutine[None, None, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


# Several processes


def _share_out(sources: Sequence[tuple[int, Source]], processes: int) -> list[list[tuple[int, Source]]]:
    """The largest first, each to the process that has least to do."""
    shares: list[list[tuple[int, Source]]] = [[] for _ in range(processes)]
    sizes = [0] * processes
    for number, source in sorted(sources, key=lambda each: -each[1].size_bytes):
        least = sizes.index(min(sizes))
        shares[least].append((number, source))
        sizes[least] += source.size_bytes
    return [share for share in shares if share]


def _play_apart(
    shares: Sequence[Sequence[tuple[int, Source]]],
    choices: Mapping[str, Settings],
    model: str,
    on_progress: OnProgress,
) -> list[PlayedSource]:
    """Raises ReplayError if a process ends early."""
    context = multiprocessing.get_context("fork")
    receivers: list[Connection] = []
    for share in shares:
        receiver, sender = context.Pipe(duplex=False)
        context.Process(target=_work, args=(share, choices, model, sender), daemon=True).start()
        # The end of its process must be seen here.
        sender.close()
        receivers.append(receiver)
    played: list[PlayedSource] = []
    while receivers:
        ready = set(wait(receivers))
        for receiver in [each for each in receivers if each in ready]:
            message = _receive(receiver)
            match message:
                case _Progress(bytes=done):
                    on_progress(done)
                case PlayedSource():
                    played.append(message)
                case None:
                    receivers.remove(receiver)
    if len(played) < sum(map(len, shares)):
        raise ReplayError("a process of the replay has ended early; its error is above")
    return played


def _receive(receiver: Connection) -> "_Progress | PlayedSource | None":
    """None at the end."""
    try:
        return msgspec.msgpack.decode(receiver.recv_bytes(), type=_Progress | PlayedSource)
    except EOFError:
        return None


def _work(
    share: Sequence[tuple[int, Source]], choices: Mapping[str, Settings], model: str, sender: Connection
) -> None:
    def send(message: "_Progress | PlayedSource") -> None:
        sender.send_bytes(msgspec.msgpack.encode(message))

    run_loop(_play_in(share, choices, model, send, lambda done: send(_Progress(done))))
    sender.close()
