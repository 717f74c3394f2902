"""docs/seen.md shows what the code does."""

from bench.seen import PAGE, render_page
from tests.shared_data import requires_shared


@requires_shared
def test_the_page_is_what_python_m_bench_seen_writes() -> None:
    assert PAGE.read_text("utf-8") == render_page()
