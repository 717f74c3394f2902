"""How the toy upstream summarizes: it repeats every planted fact in the request and adds prose.

It recognizes a summary call by the default prompts, and by those of docs/sources.md, 000 and 003. Of the
wire formats it knows only that they have messages or an input.
"""

import re
from collections.abc import Iterator, Mapping

from tests.toy.counting import TokenCounter, render_compact
from tests.toy.memory import read_items
from tests.toy.reply import Reply

SOURCE_PROMPT = "Provide a detailed prompt for continuing our conversation above"
DEFAULT_PROMPT = "Write the summary now. Use these headings"
RIDE_PROMPT = "the next answer is not for the task"
_FIVE_POINTS = "Summarize the following conversation, preserving:"
# The template's, or those of this toy.
_HEADINGS = re.compile(r"^## .+$", re.MULTILINE)
_OWN_HEADINGS = ("## What we did", "## What must not be forgotten", "## Next")
_FACT = re.compile(r"FACT-[A-Z0-9]{8}(?![A-Z0-9])")
_DEFAULT_TOKENS = 1_500
# Of a summary, for the facts; headings and one sentence take the rest.
_FACTS_SHARE = 0.75
_FILLER = "The work went on: files were read, changed and tested, and the next step follows from them. "


def has_summary_prompt(request: Mapping[str, object]) -> bool:
    """The last message, a user's, has the default prompt or a source's. With tools, it rides."""
    text = read_question(request)
    if request.get("tools") and RIDE_PROMPT not in text:
        return False
    return any(prompt in text for prompt in (DEFAULT_PROMPT, SOURCE_PROMPT, _FIVE_POINTS))


def read_question(request: Mapping[str, object]) -> str:
    """The texts of the last message, if it is a user's."""
    messages = _read_messages(request)
    last = messages[-1] if messages else None
    is_users = isinstance(last, dict) and last.get("role") == "user"
    return "\n".join(texts_of(last)) if isinstance(last, dict) and is_users else ""


def _read_messages(request: Mapping[str, object]) -> list[object]:
    """Messages of chat or of Anthropic, or the input items of Responses."""
    messages = request.get("messages")
    return list(messages) if isinstance(messages, list) else read_items(request)


def texts_of(message: Mapping[str, object]) -> Iterator[str]:
    """Every text of a message or item: content, its parts, a result, then calls and their arguments."""
    for name in ("content", "output"):
        yield from _texts(message.get(name))
    calls = message.get("tool_calls")
    yield from map(render_compact, calls if isinstance(calls, list) else ())
    yield from (str(message[name]) for name in ("arguments", "input") if name in message)


def _texts(content: object) -> Iterator[str]:
    """A text, or all that a person could read in parts; blocks have results and arguments in them."""
    match content:
        case str():
            yield content
        case list():
            for part in content:
                yield from _texts(part)
        case {"text": text} | {"thinking": text}:
            yield str(text)
        case {"type": "tool_result", "content": nested}:
            yield from _texts(nested)
        case {"type": "tool_use", "input": arguments}:
            yield render_compact(arguments)


def _find_headings(request: Mapping[str, object]) -> list[str]:
    """Of the default prompt; the quoted history before it may have others."""
    _, prompt, template = read_question(request).rpartition(DEFAULT_PROMPT)
    return _HEADINGS.findall(template) if prompt else []


def find_facts(request: Mapping[str, object]) -> tuple[str, ...]:
    """Planted facts of the request's messages, in order, each once."""
    found: dict[str, None] = {}
    for message in _read_messages(request):
        for text in texts_of(message) if isinstance(message, dict) else ():
            found.update(dict.fromkeys(_FACT.findall(text)))
    return tuple(found)


def read_output_limit(request: Mapping[str, object]) -> int | None:
    """The requested output, in tokens, under any of its names."""
    values = (request.get(name) for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"))
    value = next(filter(None, values), None)
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
    first, *others = _find_headings(request) or _OWN_HEADINGS
    rest = "".join(f"\n\n{heading}" for heading in others)
    text = f"{first}\nWe followed the task.\n{known}{rest}\n"
    room_tokens = wished - counter.text(text)
    repeats = room_tokens // max(1, counter.text(_FILLER))
    return Reply(text=text + _FILLER * max(1, repeats))
