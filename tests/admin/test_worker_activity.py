"""A worker tells its supervisor which conversations have changed since it was asked before."""

from gateway.admin.merged.worker_client import ask
from gateway.admin.worker_activity import CHANGED_PATH
from tests.toy.agent import make_session
from tests.toy.gateway import make_settings
from tests.toy.running import run_session
from tests.toy.upstream import ToyUpstream
from tests.toy.workers import running_worker, socket_paths


async def test_what_has_changed_is_told_once() -> None:
    with socket_paths() as paths:
        path = next(paths)
        async with ToyUpstream() as toy, running_worker(make_settings(toy), path) as worker:
            run = await run_session(make_session(2, 3), worker.base_url, toy)
            told = [await ask(path, CHANGED_PATH) for _ in range(2)]
    first, second = (page.parse() for page in told if hasattr(page, "parse"))
    assert isinstance(first, dict) and isinstance(second, dict)
    (row,) = first["conversations"]
    assert (row["id"], row["requests"]) == (run.conversation, len(run.answers))
    assert second == {"type": "activity", "conversations": []}
