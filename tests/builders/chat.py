"""Chat conversations as they are received, turns of them, and how they are rewritten."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from multidict import CIMultiDict
from yarl import URL

from gateway.conversations.reading import Received
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.history.ends import HistorySource
from gateway.core.history.pivot import Batch, Pivot
from gateway.core.history.view import Size
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Policy
from gateway.core.sizing.estimate import Sizes
from gateway.headers import UpstreamHead
from gateway.planning.rewrite import Rewriter
from gateway.settings import UpstreamSettings
from gateway.tenants import Tenant
from gateway.wire.registry import CHAT
from tests.builders.bodies import read_alone
from tests.decisions.builders import JSON, batches, pivots


def read(body: bytes, tenant: str = "t") -> Received:
    """Reads the body beside no other one."""
    return read_alone(tenant, CHAT, body)


def measure_sizes(received: Received) -> Sizes:
    """A token for four bytes."""
    count = len(received.conversation.messages)
    raws = [received.raw(position) for position in range(count)]
    messages = [Size(4 + len(raw) // 4, len(received.format.parse_entry(raw).text)) for raw in raws]
    leading = [received.raw(position) for position in range(-len(received.conversation.leading), 0)]
    return Sizes(messages=messages, environment=sum(4 + len(raw) // 4 for raw in leading))


def make_plan(pivot: Pivot | None = None, batches: Sequence[Batch] = (), output: int | None = None) -> Plan:
    return Plan(pivot=pivot, batches=tuple(batches), new_batch=None, received=0, sent=0, output=output)


def make_turn(received: Received, **fields: Any) -> Turn:
    upstream = UpstreamSettings(
        name="toy",
        base_url="http://127.0.0.1:1",
        api_key=None,
        allow=(),
        formats=frozenset({"chat"}),
        include_usage=True,
        discover=False,
        max_body_bytes=None,
        max_images=None,
        connect_seconds=1.0,
        idle_seconds=1.0,
    )
    defaults: JSON = {
        "tenant": Tenant(received.owner, None, "default"),
        "upstream": upstream,
        "upstream_head": UpstreamHead(
            "POST",
            URL("http://127.0.0.1:1/v1/chat/completions"),
            CIMultiDict({"Content-Type": "application/json"}),
        ),
        "raw_headers": (),
        "raw_body": received.body.data,
        "received": received,
        "policy": Policy(),
        "limits": Limits(),
        "thresholds": None,
        "scope": "scope",
        "source": HistorySource(b"source", is_named=True),
        "head": None,
        "conversation_id": "c",
        "parent_id": None,
    }
    return Turn(**(defaults | fields))


RewrittenTurn = tuple[Received, Pivot | None, tuple[Batch, ...], bytes]


def rewrite(received: Received, pivot: Pivot | None, marks: Sequence[Batch], memory: int = 1 << 20) -> bytes:
    return Rewriter(memory).rewrite(make_turn(received), make_plan(pivot, marks))


def rewrite_somehow(data: st.DataObject, received: Received) -> RewrittenTurn:
    """With a pivot and marks that may apply to it."""
    pivot = data.draw(pivots(received.conversation))
    marks = data.draw(batches(received.conversation))
    return received, pivot, marks, rewrite(received, pivot, marks)
