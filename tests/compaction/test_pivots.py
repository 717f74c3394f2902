from dataclasses import replace

from gateway.compaction.pivots import Folded
from gateway.core.compaction.summary import Accepted
from gateway.core.history.framing import make_framing
from gateway.core.history.pivot import Mark
from gateway.core.policy import Keep, Originals, Summary
from gateway.core.session.work_sections import spell_out_lists
from gateway.core.sizing.estimate import Calibration
from tests.builders.chat import make_batch, make_pivot, read, render
from tests.builders.compaction import (
    PROMPTS,
    SUMMARIZING,
    compaction_parts,
    make_cut,
    make_situation,
    receive,
    turn_of,
)

_RECEIVED = receive(4)
_FRAMED = SUMMARIZING
_PLAIN = replace(SUMMARIZING, summary=Summary(framing=False))


async def test_a_summary_becomes_a_pivot_for_the_chain_that_it_covers() -> None:
    async with compaction_parts() as parts:
        turn, situation, cut = turn_of(_RECEIVED, _PLAIN), make_situation(_RECEIVED), make_cut(5)
        pivot = await parts.pivots.make_summary(turn, situation, cut, Accepted("A summary.", 100))
        assert (pivot.key, pivot.covers) == (_RECEIVED.conversation.chain[5].hex(), 5)
        assert (pivot.summary, pivot.resume, pivot.question) == ("A summary.", PROMPTS.resume, None)
        assert (pivot.is_digest, pivot.saved_tokens) == (False, 3_900)
        assert pivot.created_seconds == parts.clock.now
        # The summary and the resume text by our count, and what stands around them.
        assert pivot.tokens == 12 + 3 + 2


async def test_a_framed_summary_says_what_it_is_and_where_its_originals_are() -> None:
    async with compaction_parts() as parts:
        turn, cut = turn_of(_RECEIVED, _FRAMED), make_cut(5)
        pivot = await parts.pivots.make_summary(turn, make_situation(_RECEIVED), cut, Accepted("S.", 100))
        framing = make_framing("summary", turn.conversation_id)
        tokens = await parts.sizer.count(turn.owner, framing, "chars")
    assert turn.conversation_id in framing
    assert (pivot.summary, pivot.framing, pivot.conversation) == ("S.", framing, turn.conversation_id)
    assert pivot.text == f"{framing}\n\nS."
    # It is a part of the size, and of what the compaction costs.
    assert (pivot.tokens, pivot.saved_tokens) == (12 + 1 + 2 + tokens, 3_900 - tokens)


async def test_a_framed_digest_is_within_its_cap_together_with_its_framing() -> None:
    async with compaction_parts() as parts:
        turn, cut = turn_of(_RECEIVED, _FRAMED), make_cut(7, cap_tokens=300)
        pivot = await parts.pivots.make_digest(turn, make_situation(_RECEIVED), cut)
        tokens = await parts.sizer.count(turn.owner, pivot.text, "chars")
    assert pivot.framing == make_framing("digest", turn.conversation_id)
    assert pivot.summary.startswith("This digest was made without a model.") and tokens <= 300


async def test_where_originals_are_not_kept_the_framing_names_no_place() -> None:
    policy = replace(_FRAMED, originals=Originals(keep=False))
    async with compaction_parts() as parts:
        turn = turn_of(_RECEIVED, policy)
        situation = make_situation(_RECEIVED, policy)
        pivot = await parts.pivots.make_summary(turn, situation, make_cut(5), Accepted("S.", 100))
        note = await parts.pivots.make_note(turn, situation, make_cut(5))
    assert pivot.framing == make_framing("summary", None) and note.framing == ""


async def test_a_framing_that_would_take_much_of_what_is_freed_is_left_out() -> None:
    async with compaction_parts() as parts:
        turn, situation = turn_of(_RECEIVED, _FRAMED), make_situation(_RECEIVED)
        small = make_cut(5, replaced_tokens=300)
        pivot = await parts.pivots.make_summary(turn, situation, small, Accepted("S.", 1))
        low = await parts.pivots.make_summary(turn, situation, make_cut(5, cap_tokens=100), Accepted("S.", 1))
    assert pivot.framing == low.framing == "" and pivot.text == "S."


async def test_without_the_opening_a_question_comes_before_the_summary() -> None:
    policy = replace(SUMMARIZING, keep=Keep(opening=False))
    async with compaction_parts() as parts:
        situation, cut = make_situation(_RECEIVED, policy), make_cut(5, start=0)
        pivot = await parts.pivots.make_summary(
            turn_of(_RECEIVED, policy), situation, cut, Accepted("A summary.", 100)
        )
    assert (pivot.question, pivot.opening_end, pivot.opening_tokens) == (PROMPTS.question, 0, 0)


async def test_a_pivot_that_builds_on_another_adds_up_what_both_saved() -> None:
    base = make_pivot(_RECEIVED.conversation, 3, saved_tokens=500)
    async with compaction_parts() as parts:
        situation, cut = make_situation(_RECEIVED), make_cut(5, base)
        pivot = await parts.pivots.make_summary(
            turn_of(_RECEIVED, _PLAIN), situation, cut, Accepted("A summary.", 100)
        )
    assert pivot.saved_tokens == 500 + 3_900


async def test_a_digest_stays_within_its_cap_and_is_the_same_each_time() -> None:
    async with compaction_parts() as parts:
        turn, situation = turn_of(_RECEIVED), make_situation(_RECEIVED)
        cut = make_cut(7, cap_tokens=200)
        first = await parts.pivots.make_digest(turn, situation, cut)
        again = await parts.pivots.make_digest(turn, situation, cut)
        tokens = await parts.sizer.count(first.owner, first.summary, "chars")
    assert first == again
    assert first.is_digest and 0 < tokens <= 200


async def test_a_digest_is_shorter_for_a_model_that_counts_more_tokens() -> None:
    situation = make_situation(_RECEIVED)
    tripled = replace(situation, known=replace(situation.known, calibration=Calibration(3.0, 1)))
    async with compaction_parts() as parts:
        pivot = await parts.pivots.make_digest(turn_of(_RECEIVED), tripled, make_cut(7, cap_tokens=300))
        tokens = await parts.sizer.count(pivot.owner, pivot.summary, "chars")
    assert 0 < 3 * tokens <= 300


async def test_dropped_turns_leave_the_policys_note() -> None:
    async with compaction_parts() as parts:
        pivot = await parts.pivots.make_note(turn_of(_RECEIVED), make_situation(_RECEIVED), make_cut(5))
    assert (pivot.summary, pivot.is_digest) == (PROMPTS.dropped, True)


async def test_recalled_pieces_are_a_part_of_the_size_and_only_where_the_policy_says_so() -> None:
    received = read(
        render(
            [
                {"role": "user", "content": "The task."},
                {"role": "assistant", "content": "I look at src/parser/lexer.py. " * 40},
                {"role": "user", "content": "Go on."},
                {"role": "assistant", "content": "Done."},
                {"role": "user", "content": "And now?"},
            ]
        )
    )
    policy = replace(SUMMARIZING, recall="auto")
    async with compaction_parts() as parts:
        cut, text = make_cut(3), Accepted("A summary.", 100)
        plain = await parts.pivots.make_summary(turn_of(received), make_situation(received), cut, text)
        turn, situation = turn_of(received, policy), make_situation(received, policy)
        pivot = await parts.pivots.make_summary(turn, situation, cut, text)
        tokens = await parts.sizer.count(turn.owner, pivot.recalled, "chars")
        private = replace(policy, originals=Originals(keep=False))
        none = await parts.pivots.make_summary(turn_of(received, private), situation, cut, text)
    assert plain.recalled == none.recalled == ""
    assert "src/parser/lexer.py" in pivot.recalled and pivot.text.endswith(pivot.recalled)
    assert 0 < tokens <= policy.recall_tokens
    assert (pivot.tokens, pivot.saved_tokens) == (plain.tokens + tokens, plain.saved_tokens - tokens)
    assert pivot.summary == plain.summary


async def test_what_the_opening_or_the_tail_shows_is_not_listed_but_what_is_cleared_there_is() -> None:
    messages = [
        {"role": "user", "content": "Port /srv/task.py."},
        {"role": "assistant", "content": "`src/old.py` `src/new.py` `/srv/task.py` `src/seen.py`"},
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": "Reading src/new.py."},
        {"role": "user", "content": "And src/seen.py?"},
    ]
    received = read(render(messages))
    folded = Folded(make_cut(2), [received.format.parse_entry(received.raw(1))])
    cleared = make_batch(received.conversation, [Mark(3)])
    async with compaction_parts() as parts:
        turn = turn_of(received)
        for batches, expected in (((), {"src/old.py"}), ((cleared,), {"src/old.py", "src/new.py"})):
            situation = make_situation(received, batches=batches)
            listed = await parts.pivots.append_lists(turn, situation, folded, "We worked.", 500)
            assert set(spell_out_lists(listed).splitlines()) == {"We worked.", *expected}
