"""What OpenAI stores of Responses: each response with its history, and every item by its id. And what
Anthropic holds of threads.

The caller of `keep` has to check `store: false`.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from tests.toy.refusal import Refusal
from tests.toy.threads import Threads

Item = Mapping[str, object]
Request = dict[str, object]


class Memory:
    """Grows with every answer kept; the items themselves are shared, not copied."""

    def __init__(self) -> None:
        self.threads = Threads()
        self._conversations: dict[str, tuple[object, ...]] = {}
        self._histories: dict[str, tuple[object, ...]] = {}
        self._items: dict[str, Item] = {}
        self._reasons: dict[str, str] = {}  # id of an item -> id of the reasoning that led to it

    def create_conversation(self, items: Sequence[object]) -> str:
        """The id of a new conversation that holds these items."""
        name = f"conv_{len(self._conversations):08d}"
        self._conversations[name] = tuple(items)
        return name

    def extend_conversation(self, request: Request, output: Sequence[Item]) -> None:
        """request: with its conversation filled in. Input and output become part of it."""
        name = find_conversation(request)
        if name is not None:
            self._conversations[name] = (*read_items(request), *output)

    def keep(self, response_id: str, history: Sequence[object], output: Sequence[Item]) -> None:
        self._histories[response_id] = (*history, *output)
        self._items |= {str(item["id"]): item for item in output if item.get("id")}

    def note_reasons(self, output: Sequence[Item]) -> None:
        """Which item must not come back with its id but without its reasoning; stored or not."""
        for before, item in pairwise(output):
            if before["type"] == "reasoning":
                self._reasons[str(item["id"])] = str(before["id"])

    def recall(self, request: Request) -> Request | Refusal:
        """The request with everything that it refers to filled in; the same object if there are none."""
        previous_id = request.get("previous_response_id")
        if previous_id is not None and previous_id not in self._histories:
            return _no_response(previous_id)
        conversation = find_conversation(request)
        if conversation is not None and previous_id is not None:
            return Refusal(message="`conversation` and `previous_response_id` exclude each other.")
        if conversation is not None and conversation not in self._conversations:
            return Refusal(message=f"Conversation with id '{conversation}' not found.", status=404)
        own = read_items(request)
        held = self._conversations[conversation] if conversation is not None else ()
        before = self._histories[str(previous_id)] if previous_id is not None else ()
        resolved = [self._resolve(item) for item in own]
        missing = next((item for item in resolved if isinstance(item, Refusal)), None)
        if missing is not None:
            return missing
        items = [*held, *before, *resolved]
        if (lonely := self._find_lonely(items)) is not None:
            return lonely
        return request if items == request.get("input") else request | {"input": items}

    def _resolve(self, item: object) -> object:
        if not isinstance(item, dict) or not _is_reference(item):
            return item
        found = self._items.get(str(item.get("id")))
        return found if found is not None else _no_item(item.get("id"))

    def _find_lonely(self, items: Sequence[object]) -> Refusal | None:
        ids = {item.get("id") for item in items if isinstance(item, dict)}
        for item_id in ids & self._reasons.keys():
            reason_id = self._reasons[str(item_id)]
            if reason_id not in ids:
                words = f"Item '{item_id}' was provided without its required 'reasoning' item: '{reason_id}'."
                return Refusal(message=words, param="input")
        return None


def find_conversation(request: Mapping[str, object]) -> str | None:
    value = request.get("conversation")
    name = value.get("id") if isinstance(value, dict) else value
    return str(name) if name is not None else None


def read_items(request: Mapping[str, object]) -> list[object]:
    """The input as items; a plain string is one user message."""
    given = request.get("input")
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}] if given else []
    return list(given) if isinstance(given, list) else []


def _is_reference(item: Item) -> bool:
    """Reasoning without encrypted content only refers to what was stored."""
    kind = item.get("type")
    is_named = kind == "reasoning" and bool(item.get("id")) and not item.get("encrypted_content")
    return kind == "item_reference" or is_named


def _no_response(response_id: object) -> Refusal:
    words = f"Previous response with id '{response_id}' not found."
    return Refusal(message=words, code="previous_response_not_found", param="previous_response_id")


def _no_item(item_id: object) -> Refusal:
    words = (
        f"Item with id '{item_id}' not found. Items are not persisted when `store` is set to false. "
        "Try again with `store` set to true, or remove this item from your input."
    )
    return Refusal(message=words, param="input", status=404)
