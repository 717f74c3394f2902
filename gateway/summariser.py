"""Makes one pivot: gives the history to a model, judges what comes back, and puts it into its place.

Stores nothing.
"""

import asyncio
from typing import Final

from gateway.core.cut import SMALLER_SHARE, Cut
from gateway.core.errors import ModelUnknown, UpstreamFailed
from gateway.core.keepsakes import find_missing, with_list
from gateway.core.pivot import Pivot
from gateway.core.plan import Situation
from gateway.core.summary import Accepted, Rejected, judge_summary, strip_thinking
from gateway.pivots import PivotMaker
from gateway.sizes import Sizer
from gateway.summary_call import SummaryClient
from gateway.summary_fit import NO_LIMIT, Fitted, SummaryFitter
from gateway.summary_models import SummaryModels
from gateway.turn import Turn

# One retry (DESIGN §6); where the first may not have fitted after all, with at most this share of its prompt.
_TRIES: Final = 2
_SMALLER_TRY: Final = 0.6
_MAY_NOT_FIT: Final = ("status 400", "status 413")
_TOO_BIG: Final = "history too big for the summariser"
# Of the summary's cap, for the list of facts that it left out; and characters to a token of such a list.
_LIST_SHARE: Final = 0.2
_LIST_CHARS_PER_TOKEN: Final = 2.5


class Summariser:
    def __init__(
        self,
        client: SummaryClient,
        fitter: SummaryFitter,
        models: SummaryModels,
        sizer: Sizer,
        pivots: PivotMaker,
    ) -> None:
        self._client = client
        self._fitter = fitter
        self._models = models
        self._sizer = sizer
        self._pivots = pivots

    async def summarise(self, turn: Turn, cut: Cut, situation: Situation) -> Pivot | Rejected:
        """At most two calls, a third where upstream does not know the cheaper model. Never raises for what an
        upstream does.

        The pivot covers less than the cut where one call cannot hold all of it.
        """
        rejected, room = Rejected(_TOO_BIG, is_summarisers=False), NO_LIMIT
        tries = _TRIES
        while tries:
            fitted = await self._fitter.fit(turn, cut, situation, room)
            if fitted is None:
                break
            tries -= 1
            try:
                answer = await self._client.ask(fitted.assignment)
            except ModelUnknown as error:
                rejected = Rejected(str(error))
                tries += self._models.note_unknown(turn, fitted.upstream, fitted.assignment.model)
                continue
            except UpstreamFailed as error:
                rejected = Rejected(str(error))
                if str(error) in _MAY_NOT_FIT:
                    room = int(fitted.prompt_tokens * _SMALLER_TRY)
                continue
            raw = await self._sizer.count(strip_thinking(answer.text), turn.policy.estimator)
            tokens = int(raw * fitted.ratio)
            verdict = judge_summary(answer, tokens, fitted.cut.folded, fitted.cut.cap)
            if isinstance(verdict, Accepted):
                whole = await self._with_facts(turn, verdict, fitted)
                return await self._pivots.make(turn, fitted.cut, situation, whole, is_digest=False)
            rejected = verdict
        return rejected

    async def _with_facts(self, turn: Turn, accepted: Accepted, fitted: Fitted) -> Accepted:
        """With the names and numbers that it should have mentioned, listed below it."""
        cut = fitted.cut
        earlier = cut.base.summary if cut.base is not None else None
        room = int(_LIST_SHARE * cut.cap * _LIST_CHARS_PER_TOKEN)
        missing = await asyncio.to_thread(find_missing, fitted.spoken, earlier, accepted.summary, room)
        if not missing:
            return accepted
        listed = with_list(accepted.summary, missing)
        tokens = int(await self._sizer.count(listed, turn.policy.estimator) * fitted.ratio)
        return Accepted(listed, tokens) if tokens <= cut.folded * SMALLER_SHARE else accepted
