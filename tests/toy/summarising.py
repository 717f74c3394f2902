"""How the toy upstream summarises: it repeats every planted fact it can see, and fills up with prose.

Knows nothing of the gateway but the prompts (documents 000 §6.2 and 003 §5) by which a summary call is
recognised.
"""

import re
from collections.abc import Iterator, Mapping

from tests.toy.counting import TokenCounter, render_compact
from tests.toy.reply import Reply

SOURCE_PROMPT = "Provide a detailed prompt for continuing our conversation above"
_FIVE_POINTS = "Summarize the following conversation, preserving:"
_FACT = re.compile(r"FACT-[A-Z0-9]{8}(?![A-Z0-9])")
_DEFAULT_TOKENS = 1_500
# Of a summary, for the facts; headings and one sentence take the rest.
_FACTS_SHARE = 0.75
_FILLER = "The work went on: files were read, changed and tested, and the next step follows from them. "


def has_summary_prompt(request: Mapping[str, object]) -> bool:
    """A source's prompt stands in the last message, a user's, and the request offers no tools."""
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages or request.get("tools"):
        return False
    last = messages[-1]
    is_users = isinstance(last, dict) and last.get("role") == "user"
    text = "\n".join(texts_of(last)) if is_users else ""
    return SOURCE_PROMPT in text or _FIVE_POINTS in text


def texts_of(message: Mapping[str, object]) -> Iterator[str]:
    """Every text of a message: content or its text parts, then the arguments of its calls."""
    match message.get("content"):
        case str(content):
            yield content
        case list(parts):
            yield from (str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)
    calls = message.get("tool_calls")
    yield from map(render_compact, calls if isinstance(calls, list) else ())


def find_facts(request: Mapping[str, object]) -> tuple[str, ...]:
    """Planted facts of the request's messages, in order, each once."""
    messages = request.get("messages")
    found: dict[str, None] = {}
    for message in messages if isinstance(messages, list) else ():
        for text in texts_of(message) if isinstance(message, dict) else ():
            found.update(dict.fromkeys(_FACT.findall(text)))
    return tuple(found)


def read_output_limit(request: Mapping[str, object]) -> int | None:
    """The requested output, in tokens."""
    value = request.get("max_completion_tokens") or request.get("max_tokens")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def make_summary(request: Mapping[str, object], counter: TokenCounter, summary_tokens: int | None) -> Reply:
    """A summary of about the wished size; None: 1,500 tokens or nine tenths of the requested output. Of more
    facts than that holds it repeats the newest.

    More than the requested output is cut by the upstream like any reply, with finish reason `length`.
    """
    limit = read_output_limit(request)
    wished = summary_tokens or min(_DEFAULT_TOKENS, int(0.9 * limit) if limit else _DEFAULT_TOKENS)
    facts = find_facts(request)
    most = int(_FACTS_SHARE * wished / max(1, counter.text("\n- FACT-ABCD2345")))
    known = "\n".join(f"- {fact}" for fact in facts[-max(1, most) :])
    text = f"## What we did\nWe followed the task.\n\n## What must not be forgotten\n{known}\n\n## Next\n"
    room_tokens = wished - counter.text(text)
    repeats = room_tokens // max(1, counter.text(_FILLER))
    return Reply(text=text + _FILLER * max(1, repeats))
