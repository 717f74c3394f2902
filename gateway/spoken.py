"""What was said in the messages that a cut folds: the originals that the client just sent (DESIGN §6)."""

from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import Cut
from gateway.core.history.transcript import Spoken


def read_folded(turn: Turn, cut: Cut) -> list[Spoken]:
    """Never placeholders. Parses each of them: call it in a thread."""
    read_spoken = turn.received.form.read_spoken
    return [read_spoken(turn.received.raw(position)) for position in range(cut.start, cut.covers)]
