"""Which model a response says it is from. The rest is in tests/traces/test_served_traces.py."""

import pytest

from tests.toy.delivery import RawAnswer
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.reply import Reply
from tests.toy.upstream import ToyUpstream
from tests.traces.collector import collecting, read_attributes
from tests.traces.test_served_traces import name_collector, post


@pytest.mark.parametrize("status", [200, 500])
async def test_the_span_of_a_call_has_the_status_of_the_upstream(status: int) -> None:
    async with ToyUpstream(window=16_000) as toy, collecting() as collector:
        if status != 200:
            toy.failures = [RawAnswer(status=status, pieces=(b"{}",))]
        toy.reply = lambda _: Reply(text="Hello.")
        async with running_gateway(make_settings(toy, more=name_collector(collector))) as gateway:
            assert await post(gateway, {}) == status
        (call,) = collector.find("POST")
    said = read_attributes(call)
    assert said["http.response.status_code"] == status and said["gateway.upstream"] == "default"
    assert said["server.address"] == "127.0.0.1" and said["server.port"] == toy.port
    assert said.get("error.type") == (None if status == 200 else "500")
