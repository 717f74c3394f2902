"""How clients shorten their own histories: each function makes a `Trim`. Values only.

Every strategy starts from the whole history at every request, as these clients do, and sends calls together
with their results. The names in the docstrings are those of the clients' own sources.
"""

import json
import re
from collections.abc import Sequence

from tests.toy.agent import Message, Trim

_CHARS_PER_TOKEN = 4
# What `with_clock` puts in front.
CLOCK = re.compile(rb"It is 12:\d\d:\d\d\.")
# gptme's `truncate_msg`: the lines that it keeps at both ends of a block.
_KEPT_LINES = 10
_CUT = "[...]"


def keep_newest(count: int) -> Trim:
    """The newest messages, without results whose call is gone (AutoGen, BufferedChatCompletionContext)."""
    return lambda history: _without_lone_results(history[-count:])


def keep_first_and_newest(count: int) -> Trim:
    """The task, then the newest messages."""

    def trim(history: list[Message]) -> list[Message]:
        rest = history[1:]
        return [history[0], *_without_lone_results(rest[-count:])]

    return trim


def keep_head_and_tail(head: int, tail: int) -> Trim:
    """Both ends with a notice between them (AutoGen, HeadAndTailChatCompletionContext)."""

    def trim(history: list[Message]) -> list[Message]:
        skipped = len(history) - head - tail
        if skipped <= 0:
            return history
        notice: Message = {"role": "user", "content": f"Skipped {skipped} messages."}
        first = _without_open_calls(history[:head])
        return [*first, notice, *_without_lone_results(history[-tail:])]

    return trim


def keep_tokens(tokens: int) -> Trim:
    """The newest messages within so many tokens, from a user's on (LangChain, trim_messages(strategy="last",
    start_on="human")).
    """

    def trim(history: list[Message]) -> list[Message]:
        kept = _newest_within(history, tokens)
        users = [at for at, message in enumerate(kept) if message["role"] == "user"]
        return kept[users[0] :] if users else history[-1:]

    return trim


def drop_oldest_results(tokens: int, *, keeps_texts: bool) -> Trim:
    """Calls and their results leave, the oldest first, until the history has so many tokens.

    keeps_texts: what the model said beside its calls stays.
    """

    def trim(history: list[Message]) -> list[Message]:
        groups = _split_groups(history)
        excess = sum(map(_count, history)) - tokens
        kept: list[Message] = []
        for at, group in enumerate(groups):
            is_old = excess > 0 and at < len(groups) - 1 and len(group) > 1
            shown = group
            if is_old:
                shown = _without_calls(group) if keeps_texts else []
            excess -= sum(map(_count, group)) - sum(map(_count, shown))
            kept += shown
        return kept

    return trim


def shorten_then_drop(tokens: int) -> Trim:
    """Cuts the longest texts first, then drops the oldest messages (gptme, `reduce_log` and `limit_log`)."""

    def trim(history: list[Message]) -> list[Message]:
        shown = list(history)
        sizes = [_count(message) for message in shown]
        for at in sorted(range(len(shown)), key=lambda at: -sizes[at]):
            if sum(sizes) <= tokens:
                return shown
            shown[at] = _with_cut_lines(shown[at])
            sizes[at] = _count(shown[at])
        return _without_lone_results(_newest_within(shown, tokens))

    return trim


def with_clock(trim: Trim | None = None) -> Trim:
    """The first message says what time it is, which differs at every request."""

    def told(history: list[Message]) -> list[Message]:
        kept = trim(history) if trim is not None else history
        minutes, seconds = divmod(len(history), 60)
        clock = f"It is 12:{minutes:02}:{seconds:02}."
        return [{**kept[0], "content": f"{clock}\n{kept[0]['content']}"}, *kept[1:]]

    return told


def with_ages(history: list[Message]) -> list[Message]:
    """Every text begins with its age, so that no message ever comes twice."""

    def aged(message: Message, age: int) -> Message:
        said = message.get("content")
        return {**message, "content": f"({age} messages ago) {said}"} if said else message

    return [aged(message, len(history) - at) for at, message in enumerate(history)]


def _count(message: Message) -> int:
    """As a client counts that has no tokenizer (LangChain, `count_tokens_approximately`)."""
    return len(json.dumps(message, ensure_ascii=False)) // _CHARS_PER_TOKEN


def _newest_within(history: Sequence[Message], tokens: int) -> list[Message]:
    kept: list[Message] = []
    for message in reversed(history):
        tokens -= _count(message)
        if tokens < 0 and kept:
            break
        kept.append(message)
    return kept[::-1]


def _without_lone_results(messages: Sequence[Message]) -> list[Message]:
    """Without results at the beginning: their call is not among the messages."""
    start = next((at for at, message in enumerate(messages) if message["role"] != "tool"), len(messages))
    return list(messages[start:])


def _without_open_calls(messages: list[Message]) -> list[Message]:
    """Without a last group: some of its results may not be among the messages."""
    end = len(messages)
    while end and (messages[end - 1]["role"] == "tool" or messages[end - 1].get("tool_calls")):
        end -= 1
    return messages[:end]


def _split_groups(history: Sequence[Message]) -> list[list[Message]]:
    """A message with its results."""
    groups: list[list[Message]] = []
    for message in history:
        if message["role"] == "tool" and groups:
            groups[-1].append(message)
        else:
            groups.append([message])
    return groups


def _without_calls(group: Sequence[Message]) -> list[Message]:
    """What the model said beside its calls, if it said anything."""
    said = group[0].get("content")
    return [{"role": "assistant", "content": said}] if said else []


def _with_cut_lines(message: Message) -> Message:
    lines = str(message.get("content") or "").split("\n")
    if len(lines) <= 2 * _KEPT_LINES + 1:
        return message
    return {**message, "content": "\n".join([*lines[:_KEPT_LINES], _CUT, *lines[-_KEPT_LINES:]])}
