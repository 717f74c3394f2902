"""A model on an errand that also searches its history, at three awkward moments: at the first token, beside
a call of the client's own tool, and after some text.

It begins once it is offered the tool. The client must not notice any of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gateway.wire.recall import RECALL_TOOL
from tests.agents.errand import Errand
from tests.agents.toolbox import find_names
from tests.toy.counting import render_compact
from tests.toy.recalling import find_results, make_recall
from tests.toy.reply import Reply, ToolCall

Request = Mapping[str, object]
# Replies of the errand between two moments, so that each has later requests before the next one.
_REST = 2


class RecallingModel:
    """For `ToyUpstream.reply`. facts: what it searches for, one at each moment.

    hidden: those that the request before the search did not hold. found: those that the results behind it
    hold.
    """

    def __init__(self, errand: Errand, facts: Sequence[str]) -> None:
        self.errand = errand
        self.hidden: list[str] = []
        self.found: list[str] = []
        self._facts = list(facts)
        self._moments = [self._first, self._beside, self._after_text]
        self._searched: str | None = None
        self._pause = 0

    def reply(self, request: Request) -> Reply:
        if self.errand.is_side_call(request):
            return self.errand.reply(request)
        self._look_for_results(request)
        if self._pause or not self._moments or RECALL_TOOL not in find_names(request):
            self._pause = max(0, self._pause - 1)
            return self.errand.reply(request)
        self._pause = _REST
        return self._moments.pop(0)(request)

    def _look_for_results(self, request: Request) -> None:
        if self._searched is not None and self._searched in find_results(dict(request)):
            self.found.append(self._searched)
        self._searched = None

    def _search(self, request: Request) -> ToolCall:
        self._searched = self._facts.pop(0)
        if self._searched not in render_compact(request):
            self.hidden.append(self._searched)
        return make_recall(len(self._facts), self._searched)

    def _first(self, request: Request) -> Reply:
        return Reply(text=None, tool_calls=(self._search(request),))

    def _after_text(self, request: Request) -> Reply:
        return Reply(text="Let me look it up.", tool_calls=(self._search(request),))

    def _beside(self, request: Request) -> Reply:
        """Put off at the end of a turn of the user, where the errand calls nothing."""
        reply = self.errand.reply(request)
        if not reply.tool_calls:
            self._pause = 0
            self._moments.insert(0, self._beside)
            return reply
        return replace(reply, tool_calls=(self._search(request), *reply.tool_calls))
