"""One span that is open. Setting an attribute of a span that is not sent does nothing."""

from collections.abc import Callable, Mapping, Sequence
from contextvars import Token

from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode

from gateway.traces.names import ERROR

AttributeValue = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, AttributeValue]
Detach = Callable[[Token[Context]], None]


class OpenSpan:
    """token: of the context in which it is the current span; None if it is not."""

    def __init__(self, span: Span, token: Token[Context] | None, detach: Detach) -> None:
        self.span = span
        self._token = token
        self._detach = detach

    def rename(self, name: str) -> None:
        self.span.update_name(name)

    def describe(self, attributes: Mapping[str, AttributeValue | None]) -> None:
        """What is None is not known."""
        self.span.set_attributes({name: value for name, value in attributes.items() if value is not None})

    def fail(self, kind: str) -> None:
        """kind: the class of an error, or a status. Texts of errors may quote a conversation."""
        self.span.set_attribute(ERROR, kind)
        self.span.set_status(Status(StatusCode.ERROR))

    def end(self) -> None:
        """In the task that began it, if it is current."""
        if self._token is not None:
            self._detach(self._token)
            self._token = None
        self.span.end()
