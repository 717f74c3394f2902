"""What is wrong with the settings, in words for the person who wrote them.

Never shows the value of a setting: it may be a secret.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.core.errors import GatewayError


@dataclass(frozen=True)
class Problem:
    """`where` is "FILE:LINE", or the option or environment variable that is to blame."""

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class SettingsError(GatewayError):
    """The settings cannot be used; the text holds one problem a line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
