"""The items of Responses: the kind and the role of an item, and the call that it makes or answers.

Also goes by the ending of a type's name, so that new kinds of tools are understood. Items of other unknown
types are kept as they are.
"""

from typing import Any, Final

from gateway.core.errors import Unreadable
from gateway.core.history.message import Call, Role
from gateway.wire.body import JSON_ERRORS, parse_value

Item = dict[str, Any]

_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
# Types that the model produces, besides every type that ends in `_call`.
_MODELS: Final = frozenset({"reasoning", "mcp_list_tools", "mcp_approval_request", "item_reference"})


def parse_items(raw: bytes) -> list[Item]:
    """The items of one message's slice. A string is a user message. Raises Unreadable."""
    try:
        items = parse_value(b"[%s]" % raw)
    except JSON_ERRORS as error:
        raise Unreadable("item is not valid JSON") from error
    return [_check_item(item) for item in items]


def _check_item(item: object) -> Item:
    if isinstance(item, str):
        return {"role": "user", "content": item}
    if not isinstance(item, dict) or not kind_of(item):
        raise Unreadable("item without a type")
    return item


def kind_of(item: Item) -> str:
    """The type, which messages may leave out; empty if there is none."""
    kind = item.get("type")
    if isinstance(kind, str) and kind:
        return kind
    return "message" if isinstance(item.get("role"), str) else ""


def role_of(item: Item) -> Role:
    """ "other" for an item of an unknown kind."""
    kind = kind_of(item)
    if kind == "message":
        role = item.get("role")
        return _ROLES.get(role, "other") if isinstance(role, str) else "other"
    if find_answered(item) is not None:
        return "tool"
    return "assistant" if kind in _MODELS or kind.endswith(("_call", "_call_output")) else "other"


def find_call(item: Item) -> Call | None:
    """The call, if the client must answer it. Calls that the upstream answers have no call id."""
    kind = kind_of(item)
    name = item.get("name")
    if kind == "mcp_approval_request":
        identity = item.get("id")
    elif kind.endswith("_call"):
        identity = item.get("call_id")
    else:
        return None
    tool = name if isinstance(name, str) else kind.removesuffix("_call")
    return Call(identity, tool) if isinstance(identity, str) else None


def find_answered(item: Item) -> str | None:
    """The id of the call that this item answers."""
    kind = kind_of(item)
    if kind == "mcp_approval_response":
        answered = item.get("approval_request_id")
    else:
        answered = item.get("call_id") if kind.endswith("_output") else None
    return answered if isinstance(answered, str) else None


def is_opaque(item: Item) -> bool:
    """Whether it stands for history that only the upstream can read. A trigger only asks for such an item."""
    kind = kind_of(item)
    return kind == "item_reference" or ("compaction" in kind and not kind.endswith("_trigger"))


def joins(before: bytes, after: bytes) -> bool:
    """Reasoning and the item after it are one unit (docs/design.md, Validity), if the model produced both."""
    if b'"reasoning"' not in before or kind_of(parse_items(before)[-1]) != "reasoning":
        return False
    follower = parse_items(after)[0]
    return role_of(follower) in ("assistant", "other") and not is_opaque(follower)
