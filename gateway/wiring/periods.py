"""The periods of background work. They are no settings: an operator has no reason to change one.

Whoever starts many gateways, one after the other, can have them wait for less.
"""

from dataclasses import dataclass, field

from gateway.reporting.activity_feed import PERIOD_SECONDS
from gateway.state.single import LeaseTimes


@dataclass(frozen=True, kw_only=True)
class Periods:
    """All in seconds.

    lease: of compactions. activity_round: how often what conversations did is looked through.
    activity_pause: between two writes of one conversation. feed: between two events for those who watch.
    """

    lease: LeaseTimes = field(default_factory=LeaseTimes)
    activity_round: float = 1.0
    activity_pause: float = 5.0
    feed: float = PERIOD_SECONDS


USUAL_PERIODS = Periods()
