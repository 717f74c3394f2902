"""Problems of the settings, worded for the person who wrote them.

A problem never shows the value of a setting, because it may be a secret.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.core.errors import GatewayError


@dataclass(frozen=True)
class Problem:
    # "FILE:LINE", a command-line option or an environment variable.
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class SettingsError(GatewayError):
    """The settings cannot be used; the message has one line for each problem."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
