"""How many examples hypothesis tries: few in `make test`, many in `make test-exhaustive`."""

from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow]
DEFAULT, EXHAUSTIVE = "default", "exhaustive"


def register_profiles() -> None:
    # Examples are drawn without randomness, so that a failure comes back. There is no time limit: on two busy
    # cores any example may be slow.
    settings.register_profile(
        "gateway", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.register_profile(DEFAULT, settings.get_profile("gateway"), max_examples=25)
    settings.register_profile(EXHAUSTIVE, settings.get_profile("gateway"), max_examples=200)


def examples(default: int, exhaustive: int) -> settings:
    """For a test that wants other numbers than its profile: `@examples(60, exhaustive=2_000)`."""
    is_exhaustive = settings.get_current_profile_name() == EXHAUSTIVE
    return settings(max_examples=exhaustive if is_exhaustive else default)
