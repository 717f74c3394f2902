"""When a session would be compacted and pruned, one line for each time."""

from collections.abc import Iterator, Sequence

from gateway.replay.numbers import show_tokens
from gateway.replay.runs import CompactionRun, RequestRun


def list_events(requests: Sequence[RequestRun]) -> Iterator[str]:
    """requests: of one conversation, in their order."""
    for number, run in enumerate(requests, start=1):
        for compaction in run.compactions:
            first = next((each for each in requests[number - 1 :] if each.covers == compaction.covers), None)
            yield f"{number:>5}  {_describe(compaction, first)}"
        if run.pruned_messages:
            yield f"{number:>5}  {run.pruned_messages} messages pruned"
        if run.change == "history":
            yield f"{number:>5}  the client changes its history"


def _describe(compaction: CompactionRun, first: RequestRun | None) -> str:
    """first: the first request that is sent with it, if there is one."""
    when = "the request waits" if compaction.when == "before" else "in the background"
    if compaction.failure is not None:
        return f"no {compaction.kind}, {when}: {compaction.failure}"
    after = f"{show_tokens(first.sent)} tokens" if first is not None else "not used yet"
    sizes = f"{show_tokens(compaction.pre_tokens)} to {after}"
    return f"{compaction.kind} of {compaction.covers} messages, {sizes}, {when}"
