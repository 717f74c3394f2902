"""Who may read the texts of conversations through the admin port, and the log of every such view.

Texts are bodies, summaries and originals. They are shown to those who have `admin.token`; without one, only
of conversations for which `show_texts` of the policy allows it.
"""

import logging
from collections.abc import Callable
from typing import Final

from aiohttp import web

from gateway.activity.record import ConversationActivity
from gateway.admin.answers import TextsAllowed
from gateway.admin.problems import AdminRefusal
from gateway.logs.fields import name_fields
from gateway.settings import Admin

log = logging.getLogger("gateway.admin")

# Who asked the supervisor of several workers, whose connections to them have no address.
PEER_HEADER: Final = "X-Gateway-Peer"
_REFUSED: Final = (
    "texts of conversations are not shown: set admin.token (or GATEWAY_ADMIN_TOKEN), or "
    "policies.NAME.show_texts: true in the policy of the conversation"
)
_UNKNOWN: Final = "-"


class TextAccess:
    """find_admin: the settings of the admin port as they are now. is_open: whether texts of a conversation
    are shown without a token.
    """

    def __init__(
        self,
        find_admin: Callable[[], Admin],
        is_open: Callable[[ConversationActivity], bool],
    ) -> None:
        self._find_admin = find_admin
        self._is_open = is_open

    @property
    def needs_token(self) -> bool:
        return self._find_admin().token is not None

    def describe(self, conversation: ConversationActivity | None) -> TextsAllowed:
        """conversation: None if only its records are left."""
        if self.needs_token or (conversation is not None and self._is_open(conversation)):
            return TextsAllowed(allowed=True, reason=None)
        return TextsAllowed(allowed=False, reason=_REFUSED)

    def check(self, conversation: ConversationActivity | None) -> None:
        """Raises AdminRefusal (403) if its texts are not to be shown. What is shown then is to be logged."""
        allowed = self.describe(conversation)
        if allowed.reason is not None:
            raise AdminRefusal(403, allowed.reason)


def log_view(request: web.Request, identity: str, what: str) -> None:
    """Logs that a text of this conversation was shown."""
    peer = request.remote or request.headers.get(PEER_HEADER, _UNKNOWN)
    fields = name_fields(conversation=identity, what=what)
    log.info("texts shown: conversation=%s what=%s to=%s", identity, what, ascii(peer)[1:-1], extra=fields)
