"""What a client brings is the same whether it sends everything, only what is new, or only what is newest."""

import pytest

from tests.agents.material import count_material, fewest_summaries, measure_material, most_summaries
from tests.toy.chat import CHAT
from tests.toy.counting import TokenCounter
from tests.toy.economics import Sizes
from tests.toy.messages import MESSAGES
from tests.toy.reply import Reply
from tests.toy.responses import RESPONSES

_COUNTER = TokenCounter()
_REPLIES = [Reply(text=f"Reply number {number} has some words.") for number in range(4)]
_HISTORY: list[object] = [{"role": "system", "content": "You read."}]
for _number, _reply in enumerate(_REPLIES):
    _HISTORY.append({"role": "user", "content": f"Read note {_number}, please."})
    _HISTORY.append({"role": "assistant", "content": _reply.text})
_WHOLE = [{"messages": _HISTORY[: 2 + 2 * turn]} for turn in range(4)]


def test_a_history_that_is_sent_whole_counts_as_its_longest_request() -> None:
    sizes = measure_material(CHAT, _COUNTER, _WHOLE)
    assert sizes.floor_tokens == CHAT.count(_COUNTER, _WHOLE[0])
    assert count_material(sizes) == CHAT.count(_COUNTER, _WHOLE[-1])
    assert len(sizes.groups) == len(_WHOLE)


def test_a_client_that_drops_old_messages_brings_as_much() -> None:
    newest = [{"messages": [_HISTORY[0], *_HISTORY[1 : 2 + 2 * turn][-3:]]} for turn in range(4)]
    assert newest[-1] != _WHOLE[-1]
    assert measure_material(CHAT, _COUNTER, newest) == measure_material(CHAT, _COUNTER, _WHOLE)


def test_replies_that_the_server_holds_count_where_they_were_given() -> None:
    new = [_WHOLE[0], *({"messages": _HISTORY[1 + 2 * turn : 2 + 2 * turn]} for turn in range(1, 4))]
    assert measure_material(CHAT, _COUNTER, new, _REPLIES) == measure_material(CHAT, _COUNTER, _WHOLE)
    assert measure_material(CHAT, _COUNTER, _WHOLE, _REPLIES) == measure_material(CHAT, _COUNTER, _WHOLE)


def test_cache_marks_and_spellings_bring_nothing_new() -> None:
    text = {"type": "text", "text": "Read."}
    marked = text | {"cache_control": {"type": "ephemeral"}}
    requests = [
        {"messages": [{"role": "user", "content": content}]} for content in ("Read.", [text], [marked])
    ]
    assert measure_material(MESSAGES, _COUNTER, requests).groups == (0, 0, 0)


def test_items_of_responses_count_once() -> None:
    first = {"type": "message", "role": "user", "content": "Read."}
    output = {"type": "function_call_output", "call_id": "call_1", "output": "What the note says."}
    requests = [{"input": [first]}, {"input": [first, output]}, {"input": [first, output]}]
    sizes = measure_material(RESPONSES, _COUNTER, requests)
    assert count_material(sizes) == RESPONSES.count(_COUNTER, requests[-1])
    assert sizes.groups[1:] == (0, 0)


def test_no_request_is_no_material() -> None:
    assert measure_material(CHAT, _COUNTER, []) == Sizes(0, ())


# The hard threshold is at 12,000. A compaction leaves 1,000 + 1,500 + a tail of 2,000, so there is room for
# seven more groups and the one that passes the threshold.
@pytest.mark.parametrize(("groups", "fewest", "most"), [(11, 0, 2), (13, 1, 3), (30, 3, 6)])
def test_the_fewest_summaries_follow_from_the_room_that_each_makes(
    groups: int, fewest: int, most: int
) -> None:
    assert fewest_summaries(Sizes(1_000, (1_000,) * groups), 16_000) == fewest
    assert most_summaries(fewest) == most
