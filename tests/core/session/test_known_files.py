from hypothesis import given
from hypothesis import strategies as st

from gateway.core.session.known_files import KnownFiles
from gateway.core.session.line_diff import diff_lines
from gateway.core.session.patches import Replacement

_LINES = st.lists(st.sampled_from(["a", "b", "c", "aa", ""]), min_size=1, max_size=12)


@given(_LINES, st.data(), st.text("abc\n", max_size=8), st.booleans())
def test_a_replacement_in_a_known_file_is_counted_as_if_the_whole_file_was_compared(
    lines: list[str], data: st.DataObject, new: str, is_everywhere: bool
) -> None:
    text = "\n".join(lines)
    start = data.draw(st.integers(0, len(text)))
    old = text[start : data.draw(st.integers(start, len(text)))]
    if not old:
        return
    files = KnownFiles()
    files.put_whole("f", text)
    diff = files.replace("f", Replacement(old, new, is_everywhere))
    if text.count(old) > 1 and not is_everywhere:
        assert diff is None
        assert files.find_whole("f", is_checked=True) is None
        return
    changed = text.replace(old, new)
    assert diff == diff_lines(text, changed, 1) or is_everywhere
    whole = diff_lines(text, changed)
    assert diff is not None
    assert whole is not None
    assert (diff.additions, diff.deletions) == (whole.additions, whole.deletions)
    assert files.find_whole("f", is_checked=False) == changed


def test_a_part_tells_how_the_lines_around_a_replacement_go_on() -> None:
    files = KnownFiles()
    files.put_part("f", "x = [\n    1, 2]\n")
    diff = files.replace("f", Replacement("1", "1,\n    3"))
    assert diff is not None
    assert (diff.additions, diff.deletions) == (2, 1)
    assert diff.text.startswith("@@\n")
    assert files.replace("g", Replacement("1", "2")) is None


def test_what_any_command_may_have_changed_is_not_certain() -> None:
    files = KnownFiles()
    files.put_whole("f", "a\n")
    files.put_absent("g")
    files.doubt()
    assert files.find_whole("f", is_checked=False) is None
    assert files.find_whole("f", is_checked=True) == "a\n"
    assert not files.absent


def test_the_file_that_was_not_used_for_longest_is_forgotten_first() -> None:
    files = KnownFiles()
    for name in range(6):
        files.put_whole(str(name), "x" * 200_000)
    assert list(files.texts) == ["1", "2", "3", "4", "5"]
    assert files.chars == 1_000_000
    files.put_whole("1", "x" * 300_000)
    assert "1" not in files.texts
    assert files.chars == 800_000


def test_what_grows_beyond_the_bound_is_not_known() -> None:
    files = KnownFiles()
    files.put_whole("f", "a" * 100_000)
    assert files.replace("f", Replacement("a", "b" * 100_000, is_everywhere=True)) is None
    assert not files.texts and files.chars == 0
