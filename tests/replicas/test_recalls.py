"""What the model recalled through one replica stands at the same place in requests through another one."""

from contextlib import AsyncExitStack
from itertools import pairwise

import httpx2 as httpx

from tests.pipeline.test_recall_loop import POLICY, Talk, count_searches, recall
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.replicas import ToyServers
from tests.toy.reply import Reply
from tests.toy.upstream import ToyUpstream

_SECRET = "The launch code of the harbour crane is PELICAN-4471."


async def test_another_replica_sends_what_was_recalled_in_the_same_bytes() -> None:
    servers = ToyServers()
    async with ToyUpstream(window=6_000) as toy, AsyncExitStack() as stack:
        settings = make_settings(toy, more=POLICY)
        one, other = [
            await stack.enter_async_context(running_gateway(settings, stores=servers.connect()))
            for _ in range(2)
        ]
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=30))
        talk = Talk(one, toy, client, [{"role": "user", "content": "Begin."}], [])
        toy.reply = lambda _: talk.script.pop(0) if talk.script else Reply(text="Understood.")
        talk.add({"role": "assistant", "content": "Yes."})
        await talk.ask(_SECRET)
        await talk.fill()
        talk.script = [Reply(text=None, tool_calls=(recall(),)), Reply(text="It is PELICAN-4471.")]
        await talk.ask("What is the launch code?")
        begun = len(talk.bodies) - 1
        for number, gateway in enumerate((other, one, other)):
            talk.gateway = gateway
            await talk.ask(f"And then, {number}?")
        # The index of the other replica is made from the shared originals.
        talk.script = [Reply(text=None, tool_calls=(recall(call_id="call_r2"),)), Reply(text="Still that.")]
        await talk.ask("Say it once more.")
        talk.gateway = one
        await talk.ask("Thanks.")
    bodies = talk.bodies[begun:]
    assert [count_searches(body) for body in bodies] == [1, 1, 1, 1, 1, 2, 2]
    for before, after in pairwise(bodies):
        assert after["messages"][: len(before["messages"])] == before["messages"]
        assert after["tools"] == before["tools"]
    results = [
        message["content"]
        for message in bodies[-1]["messages"]
        if message.get("tool_call_id") in ("call_r1", "call_r2")
    ]
    assert len(results) == 2 and all("PELICAN-4471" in result for result in results)
