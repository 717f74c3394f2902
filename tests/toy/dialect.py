"""One wire format, as the scripted agent writes it and the toy upstream reads and answers it.

Knows no format: chat.py, responses.py and messages.py each are one. Pure but for the toy's memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tests.toy.counting import TokenCounter
from tests.toy.delivery import RawAnswer
from tests.toy.memory import Memory
from tests.toy.refusal import Refusal
from tests.toy.reply import Reply
from tests.toy.validity import Rules

Request = dict[str, object]
Message = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Since:
    """What upstream already holds: all up to the reply of this turn, under this name."""

    turn: int
    response_id: str


@dataclass(frozen=True, kw_only=True)
class Talk:
    """What one request says, in no format: messages as chat has them. mark: names one reply of the session,
    by its place among the messages. thinks: the model reasons before it speaks. known: messages that upstream
    holds as `response_id`.
    """

    model: str
    leading: Sequence[Message]
    messages: Sequence[Message]
    tools: Sequence[Message]
    mark: Callable[[int], str]
    thinks: bool = False
    known: int = 0
    response_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request that is to be answered, and with what. number: of the answer."""

    request: Request
    number: int
    prompt_tokens: int
    counter: TokenCounter
    memory: Memory


class Dialect(Protocol):
    @property
    def path(self) -> str:
        """Where answers are asked for, behind the base URL."""

    @property
    def output_key(self) -> str:
        """The field that limits a reply."""

    def headers(self, key: str) -> dict[str, str]:
        """What a client of this format sends besides its content type."""

    def envelope(self, talk: Talk, fields: Mapping[str, object]) -> Request:
        """The agent's request; `fields` follow the tools."""

    def items(self, request: Mapping[str, object]) -> list[object]:
        """System prompt and messages, as finely as they can be told apart; cache marks left out."""

    def count(self, counter: TokenCounter, request: Mapping[str, object]) -> int:
        """Tokens of the whole prompt, as its usage will say; what is malformed counts nothing."""

    def recall(self, request: Request, memory: Memory) -> Request | Refusal:
        """The request with what it only refers to."""

    def find_violation(self, request: object, headers: Mapping[str, str], rules: Rules) -> Refusal | None:
        """The first reason to refuse, window aside. Header names are in lower case."""

    def overflow(self, window: int, prompt_tokens: int, output_tokens: int) -> Refusal:
        """Of a prompt that is too long, alone or with its output."""

    def refuse(self, refusal: Refusal) -> RawAnswer:
        """An error status."""

    def refuse_in_stream(self, refusal: Refusal, asked: Asked) -> RawAnswer:
        """Status 200, and the error as an event of the stream that was begun."""

    def answer(self, asked: Asked, reply: Reply) -> RawAnswer:
        """Streamed if the request says so."""

    def is_whole(self, body: bytes) -> bool:
        """One JSON object, or server-sent events up to their proper end; no error in them."""

    def read_response_id(self, body: bytes) -> str | None:
        """By which name upstream knows this answer, where the agent wants to refer to it."""
