"""What names a session: its client's own title call, the first summary, or the first user message.

A title call is a request of its own, so which conversation it names has to be proven: the client gives both
the same label, or where neither has one, the title call holds the conversation's first user message as it is.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from gateway.conversations.reading import Received
from gateway.conversations.turn import Turn
from gateway.core.compaction.summary import strip_thinking
from gateway.core.session.titles import LONGEST_TITLE_CHARS, find_asked, make_title, parse_title_reply
from gateway.wire.reading import ResponseDocument, ResponseFacts, read_piece
from gateway.wire.sse import SseEvent

# A short message, such as a greeting, begins many conversations, so it proves nothing.
_SHORTEST_PROOF_CHARS: Final = 12
# A title call has one or two messages; a proof is no long text.
_MOST_MESSAGES: Final = 8
_MOST_MESSAGE_BYTES: Final = 1 << 16
# A title call that is answered with more than this is not one.
_MOST_REPLY_CHARS: Final = 4_000
_MOST_LINES: Final = 40
_HEADING: Final = re.compile(r"\A#{1,6}\s+")
# What stands before the words of a line: list marks, quotation marks, emphasis.
_MARKS: Final = " \t-*•>#\"'`“”‘’_:."
_NUMBERED: Final = re.compile(r"\A\(?\d{1,2}[.)]\s+")
# A line that ends like this announces the next one.
_LABEL_ENDS: Final = (":", "：")
_WORD: Final = re.compile(r"[^\W\d_]+")
_TAG: Final = re.compile(r"\A</?[\w-]+>\Z")
_FEWEST_WORDS: Final = 3
# Words of headings that any summary may have.
_GENERAL_WORDS: Final = """
    a an and the of for our this so far summary summarized conversation session context continuation
    prompt overview background primary current state status progress detailed work history what we did
    user users requirements instructions key details information analysis notes handoff checkpoint
    compaction earlier messages previous constraints preferences decisions done in open files commands
    next step none
"""
# What follows a heading with one of these words is what the session is about.
_GOAL: Final = frozenset(["goal", "goals", "task", "tasks", "objective", "request", "intent"])
_GENERAL: Final = _GOAL.union(_GENERAL_WORDS.split())


def list_proofs(label: str | None, asked: Iterable[str]) -> tuple[str, ...]:
    """Names of what a conversation and its title call have in common, within one tenant.

    label: the client's name for its session. asked: texts of user messages: the first one of a conversation,
    or those of a title call.
    """
    if label is not None:
        return ("label." + _hash(label),)
    telling = [text.strip() for text in asked if len(text.strip()) >= _SHORTEST_PROOF_CHARS]
    return tuple(["asked." + _hash(text) for text in telling])


def list_proofs_of_title_call(turn: Turn) -> tuple[str, ...]:
    """Its newest user messages may be those of the conversation that it names."""
    received = turn.received
    messages = received.conversation.messages
    newest = range(len(messages))[-_MOST_MESSAGES:]
    short = [position for position in newest if messages[position].size_bytes <= _MOST_MESSAGE_BYTES]
    return list_proofs(turn.session, _iter_asked(received, short) if turn.session is None else ())


def find_first_asked(received: Received) -> str:
    """What the user first asked, of what is still sent; empty if there is nothing."""
    return next(filter(None, _iter_asked(received, range(len(received.conversation.messages)))), "")


def _iter_asked(received: Received, positions: Iterable[int]) -> Iterator[str]:
    conversation = received.conversation
    for position in positions:
        if conversation.messages[position].role == "user" and not conversation.is_gone(position):
            yield find_asked(received.entry(position))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def clean_title(reply: str) -> str:
    """What a model replied to a title call as one line; empty if that is no title."""
    title = _shorten(parse_title_reply(strip_thinking(reply)))
    # A reply that has other fields than a title.
    return "" if title.startswith("{") else title


def find_summary_title(summary: str) -> str:
    """The first words of a summary that say something. Empty if there are none.

    That is the first line under a heading such as "Goal", a heading that not every summary has, or a line of
    a few words.
    """
    text = strip_thinking(summary)
    is_goal = False
    for line in text.splitlines()[:_MOST_LINES]:
        words = line.strip()
        is_heading = _HEADING.match(words) is not None
        words = _NUMBERED.sub("", _HEADING.sub("", words)).replace("**", "").strip()
        if not words or _TAG.match(words) or words.startswith(("```", "|")):
            continue
        named = frozenset(_WORD.findall(words.casefold()))
        if named <= _GENERAL:
            is_goal = not named.isdisjoint(_GOAL)
            continue
        if words.endswith(_LABEL_ENDS):
            continue
        found = _shorten(words.strip(_MARKS))
        if found and (is_heading or is_goal or len(found.split()) >= _FEWEST_WORDS):
            return found
    return ""


def _shorten(text: str) -> str:
    printable = "".join(each if each.isprintable() else " " for each in text[: 4 * LONGEST_TITLE_CHARS])
    return make_title(printable)


class TitleListener:
    """Collects the reply to a title call, and tells it once it is whole."""

    def __init__(self, on_reply: Callable[[str], None]) -> None:
        self._on_reply = on_reply
        self._facts = ResponseFacts()
        self._texts: list[str] = []
        self._chars = 0
        self._is_over = False

    def note(self, event: SseEvent, _: list[ResponseDocument]) -> None:
        if self._is_over:
            return
        for document in self._facts.note(event):
            part = read_piece(document)
            # Some servers repeat the whole message after its deltas.
            if part.text and not (part.is_whole and self._texts):
                self._texts.append(part.text[:_MOST_REPLY_CHARS])
                self._chars += len(part.text)
        if self._facts.has_error or self._chars > _MOST_REPLY_CHARS:
            self._is_over = True
        elif self._facts.has_ended:
            self._is_over = True
            self._on_reply("".join(self._texts))
