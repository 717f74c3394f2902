"""Two conversations of one key that begin alike, with a restart between them."""

import json
from pathlib import Path

import httpx2 as httpx

from tests.pipeline.test_recall_loop import POLICY, Talk, recall
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.reply import Reply
from tests.toy.upstream import ToyUpstream

_SECRET = "The launch code of the harbour crane is PELICAN-4471."


async def test_a_conversation_that_begins_like_another_one_does_not_find_its_messages(tmp_path: Path) -> None:
    async with ToyUpstream(window=6_000) as toy:
        settings = make_settings(toy, more=POLICY, store=f"disk:{tmp_path}/s")
        for said in (_SECRET, "Nothing secret here at all."):
            async with running_gateway(settings) as gateway, httpx.AsyncClient(timeout=30) as client:
                talk = Talk(gateway, toy, client, [], [])
                toy.reply = lambda _, talk=talk, said=said: (  # type: ignore[misc]
                    talk.script.pop(0) if talk.script else Reply(text=f"To {len(said)}.")
                )
                await talk.ask("Begin.")
                await talk.ask(said)
                await talk.fill()
                talk.script[:] = [Reply(text="", tool_calls=(recall(),)), Reply(text="Done.")]
                await talk.ask("And now?")
                assert ("PELICAN" in json.dumps(talk.bodies[-1])) is (said == _SECRET)
