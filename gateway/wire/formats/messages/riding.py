"""Messages: a summary that rides on the conversation's own request.

Another `tool_choice`, or other `thinking`, would make the provider's cache of the messages useless
(docs/economics.md), so both stay. A request whose tools may act at the provider cannot be ridden: nothing
else keeps the model from using them.
"""

import re
from typing import Final

from gateway.core.counts import is_count
from gateway.wire.formats.messages.request import is_trimmed
from gateway.wire.riding import RidingRequest, read_ridden, ride_or_none, spare_tokens

# Tools that act at the provider, files that it keeps, a history that it holds, and a reply that ends where a
# summary does not.
_IN_THE_WAY: Final = ("mcp_servers", "container", "thread", "stop_sequences", "output_format")
# Tools that the client runs; all others run at the provider.
_OWN: Final = re.compile(r"custom|(?:bash|text_editor|computer|memory)_\d+")
_FORCED: Final = ("any", "tool")
_LIMITS: Final = ("max_tokens",)


@ride_or_none
def ride(data: bytes, request: RidingRequest) -> bytes | None:
    """Not for structured output, a forced call, or a reply that was begun already."""
    body = read_ridden(data, "messages")
    if body is None or body.has(*_IN_THE_WAY) or _has_format(body.parse("output_config")):
        return None
    if _is_forced(body.parse("tool_choice")) or _acts(body.parse("tools")):
        return None
    if is_trimmed(body.parse("context_management")):
        return None
    last = body.parse_last()
    if not isinstance(last, dict) or last.get("role") != "user":
        return None
    limit, budget = body.parse("max_tokens"), _find_budget(body.parse("thinking"))
    least = request.cap_tokens + budget
    enough = max(budget + 1, request.cap_tokens + spare_tokens(request))
    if least > request.room_tokens and is_count(limit) and limit >= enough:
        # The limit stays: a model seldom thinks for its whole budget.
        least = enough
    if not body.limit_reply(_LIMITS, least, request.room_tokens):
        return None
    body.append({"role": "user", "content": request.message})
    return body.render()


def _has_format(config: object) -> bool:
    return isinstance(config, dict) and config.get("format") is not None


def _is_forced(choice: object) -> bool:
    return isinstance(choice, dict) and choice.get("type") in _FORCED


def _acts(tools: object) -> bool:
    """Whether the provider runs one of the tools: it searches, fetches, or runs code."""
    kinds = [tool.get("type") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    return any(kind is not None and not _OWN.fullmatch(str(kind)) for kind in kinds)


def _find_budget(thinking: object) -> int:
    """Tokens that are a part of the reply's limit, and not of its text."""
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    return budget if is_count(budget) else 0
