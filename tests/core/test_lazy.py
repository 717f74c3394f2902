from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

from gateway.core.lazy import lazy


@dataclass(frozen=True)
class Text:
    words: str
    begun: Event
    may_end: Event

    @lazy
    def size(self) -> int:
        """The number of words."""
        assert not self.begun.is_set(), "it was computed before"
        self.begun.set()
        self.may_end.wait()
        return len(self.words.split())


def test_a_value_is_computed_once() -> None:
    text = Text("one two", Event(), Event())
    text.may_end.set()
    assert (text.size, text.size) == (2, 2)


def test_an_object_does_not_wait_for_the_value_of_another() -> None:
    slow, quick = Text("one", Event(), Event()), Text("one two", Event(), Event())
    quick.may_end.set()
    with ThreadPoolExecutor(1) as thread:
        try:
            computing = thread.submit(lambda: slow.size)
            slow.begun.wait()
            assert quick.size == 2
        finally:
            slow.may_end.set()
        assert computing.result() == 1
