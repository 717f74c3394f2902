"""The items of Responses: of which kind one is, whose it is, and which call it makes or answers.

Knows types by their names' endings as well, so that a tool that is new tomorrow is understood like today's.
Items beyond that are kept, and nothing is known of them.
"""

from typing import Any, Final

import msgspec

from gateway.core.errors import Unreadable
from gateway.core.history.message import Role
from gateway.wire.body import decode_message

Item = dict[str, Any]

_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
# What the model produces, besides every kind of `..._call`.
_MODELS: Final = frozenset({"reasoning", "mcp_list_tools", "mcp_approval_request", "item_reference"})


def decode_items(raw: bytes) -> list[Item]:
    """The items of one message's slice; a string is a message of the user's. Raises Unreadable."""
    try:
        items = decode_message(b"[%s]" % raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable("item is not JSON we can read") from error
    return [_read_item(item) for item in items]


def _read_item(item: object) -> Item:
    if isinstance(item, str):
        return {"role": "user", "content": item}
    if not isinstance(item, dict) or not read_kind(item):
        raise Unreadable("item without a type")
    return item


def read_kind(item: Item) -> str:
    """The type, which messages may leave out; empty where there is none."""
    kind = item.get("type")
    if isinstance(kind, str) and kind:
        return kind
    return "message" if isinstance(item.get("role"), str) else ""


def read_role(item: Item) -> Role:
    """Whose it is; "other" for what is of no known kind."""
    kind = read_kind(item)
    if kind == "message":
        role = item.get("role")
        return _ROLES.get(role, "other") if isinstance(role, str) else "other"
    if read_answered(item) is not None:
        return "tool"
    return "assistant" if kind in _MODELS or kind.endswith(("_call", "_call_output")) else "other"


def read_call(item: Item) -> tuple[str, str] | None:
    """Id and tool of a call that the client must answer. What upstream answers itself has no call id."""
    kind = read_kind(item)
    name = item.get("name")
    if kind == "mcp_approval_request":
        identity = item.get("id")
    elif kind.endswith("_call"):
        identity = item.get("call_id")
    else:
        return None
    tool = name if isinstance(name, str) else kind.removesuffix("_call")
    return (identity, tool) if isinstance(identity, str) else None


def read_answered(item: Item) -> str | None:
    """The id of the call that this item answers."""
    kind = read_kind(item)
    if kind == "mcp_approval_response":
        answered = item.get("approval_request_id")
    else:
        answered = item.get("call_id") if kind.endswith("_output") else None
    return answered if isinstance(answered, str) else None


def is_opaque(item: Item) -> bool:
    """Stands for history that only upstream can read. A trigger only asks for it."""
    kind = read_kind(item)
    return kind == "item_reference" or ("compaction" in kind and not kind.endswith("_trigger"))


def joins(before: bytes, behind: bytes) -> bool:
    """Reasoning and the item after it are one unit (FACTS §3), wherever the model produced both."""
    if b'"reasoning"' not in before or read_kind(decode_items(before)[-1]) != "reasoning":
        return False
    follower = decode_items(behind)[0]
    return read_role(follower) in ("assistant", "other") and not is_opaque(follower)
