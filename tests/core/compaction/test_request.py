from gateway.core.compaction.request import CompactionResult
from gateway.core.compaction.summary import Rejected
from tests.builders.chat import converse, make_pivot

_PIVOT = make_pivot(
    converse([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user"}]), 2
)


def test_a_result_with_a_pivot_is_no_failure() -> None:
    result = CompactionResult(_PIVOT, 1)
    assert (result.pivot, result.failure) == (_PIVOT, "")


def test_a_result_without_a_pivot_says_why() -> None:
    result = CompactionResult(Rejected("empty"), 2)
    assert (result.pivot, result.failure) == (None, "empty")
