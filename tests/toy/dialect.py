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
    """The history that the upstream already stores: everything up to the reply of this turn."""

    turn: int
    response_id: str


@dataclass(frozen=True, kw_only=True)
class Talk:
    """One request, independent of a format; messages as in chat.

    mark: the basis of the ids of a reply, by its place among the messages. thinks: the model reasons before
    it replies. known: number of messages that the upstream stores as `response_id`.
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
        """The path of the endpoint, behind the base URL."""

    @property
    def output_key(self) -> str:
        """The field that limits a reply."""

    def headers(self, key: str) -> dict[str, str]:
        """The headers of a client besides its content type."""

    def envelope(self, talk: Talk, fields: Mapping[str, object]) -> Request:
        """The agent's request; `fields` follow the tools."""

    def items(self, request: Mapping[str, object]) -> list[object]:
        """System prompt and messages as a list of the smallest units, without cache marks."""

    def count(self, counter: TokenCounter, request: Mapping[str, object]) -> int:
        """Tokens of the whole prompt, as reported in its usage. Malformed parts count 0."""

    def recall(self, request: Request, memory: Memory) -> Request | Refusal:
        """The request with everything that it refers to filled in."""

    def find_violation(self, request: object, headers: Mapping[str, str], rules: Rules) -> Refusal | None:
        """The first reason to refuse, window aside. Header names are in lower case."""

    def overflow(self, window: int, prompt_tokens: int, output_tokens: int) -> Refusal:
        """Of a prompt that is too long, alone or with its output."""

    def refuse(self, refusal: Refusal) -> RawAnswer:
        """An error status."""

    def refuse_in_stream(self, refusal: Refusal, asked: Asked) -> RawAnswer:
        """Status 200, and the error as an event of the stream that was begun."""

    def answer(self, asked: Asked, reply: Reply) -> RawAnswer:
        """The response, streamed if the request asks for that."""

    def is_whole(self, body: bytes) -> bool:
        """One JSON object, or server-sent events up to their proper end; no error in them."""

    def read_response_id(self, body: bytes) -> str | None:
        """The id by which a later request may refer to this response; None if the agent sends its history in
        full.
        """
