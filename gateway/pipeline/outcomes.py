"""Records how an exchange ended: for the conversation, for operators, and for what its usage teaches."""

from gateway.compaction.compactor import Compactor
from gateway.conversations.registry import Registry
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.sizing.usage import Usage
from gateway.http.request_note import RequestNote
from gateway.pipeline.exchange import Outcome
from gateway.planning.learning import Learner
from gateway.reporting.reporter import Reporter
from gateway.wire.response.facts import is_window_exceeded


class OutcomeRecorder:
    def __init__(
        self, compactor: Compactor, registry: Registry, learner: Learner, reporter: Reporter
    ) -> None:
        self._compactor = compactor
        self._registry = registry
        self._learner = learner
        self._reporter = reporter

    def record_extra(self, turn: Turn, usage: Usage) -> None:
        """A call that the client does not see: the model searched, and went on with another one."""
        self._reporter.note_recall_call(turn, usage)

    def record(self, turn: Turn, plan: Plan, note: RequestNote, outcome: Outcome) -> None:
        """Records the response and learns from its usage, also if the client hung up. Never waits."""
        reading = outcome.reading
        usage = reading.usage
        note.usage, note.finish_reason = usage, reading.finish_reason
        is_usable = usage is not None or reading.is_complete
        if 200 <= outcome.status < 300 and is_usable and not reading.has_error:
            self._registry.record(turn, plan, self._compactor.record_response(turn, plan, usage))
            self._reporter.note_request(turn, plan, usage)
        if usage is not None and is_window_exceeded(reading.finish_reason):
            self._learner.learn_from_full_window(turn, usage)
