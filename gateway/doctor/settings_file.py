"""Do the settings load, and what is hardly meant in them?"""

from collections.abc import Iterator

from gateway.doctor.finding import Diagnosis, blame, note_ok, warn
from gateway.settings import Settings, SettingsError

_SUBJECT = "settings"


def examine_errors(error: SettingsError) -> Iterator[Diagnosis]:
    """Settings that do not load. Each problem names its line, and never the value there."""
    for problem in error.problems:
        yield blame(
            _SUBJECT, str(problem), f"correct {problem.where}; `refold schema` helps editors to do it"
        )


def examine_settings(settings: Settings, file: str | None) -> Iterator[Diagnosis]:
    source = file or "the built-in settings: no --config FILE is given"
    yield note_ok(_SUBJECT, f"valid: {source}")
    for problem in settings.warnings:
        yield warn(_SUBJECT, str(problem), f"change {problem.where}")
