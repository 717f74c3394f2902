from gateway.conversations.thread_sizes import ThreadSizes
from gateway.core.sizing.usage import Usage


def test_a_size_is_known_by_its_tenant_upstream_and_name() -> None:
    sizes = ThreadSizes()
    sizes.note("t", "u", "msg_1", Usage(100, 20))
    assert sizes.find("t", "u", "msg_1") == 120
    assert sizes.find("v", "u", "msg_1") is None
    assert sizes.find("t", "v", "msg_1") is None
    assert sizes.find("t", "u", "msg_2") is None


def test_its_memory_is_bounded() -> None:
    sizes = ThreadSizes()
    for number in range(10_000):
        sizes.note("t", "u", f"msg_{number}", Usage(100, 20))
    assert sizes.find("t", "u", "msg_0") is None
    assert sizes.find("t", "u", "msg_9999") == 120
