import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.session.patches import (
    PatchedFile,
    Replacement,
    parse_codex_patch,
    parse_search_blocks,
    parse_unified_diff,
)

_CODEX = """*** Begin Patch
*** Add File: new.py
+import a
+
+a.run()
*** Update File: old.py
@@ def f():
 x = 1
-y = 2
+y = 3
+z = 4
@@
-last
*** End of File
*** Update File: from.py
*** Move to: to.py
@@
-a
+b
*** Update File: same.py
*** Move to: other.py
*** Delete File: gone.py
*** End Patch
"""


def test_the_files_of_a_patch_of_codex() -> None:
    assert parse_codex_patch(f"apply it:\n{_CODEX}after") == [
        PatchedFile(
            "new.py",
            "created",
            3,
            0,
            "@@ -0,0 +1,3 @@\n+import a\n+\n+a.run()\n",
            text="import a\n\na.run()\n",
        ),
        PatchedFile("old.py", "changed", 2, 2, "@@ def f():\n x = 1\n-y = 2\n+y = 3\n+z = 4\n@@\n-last\n"),
        PatchedFile("to.py", "changed", 1, 1, "@@\n-a\n+b\n", moved_from="from.py"),
        PatchedFile("other.py", "moved", 0, 0, "", moved_from="same.py"),
        PatchedFile("gone.py", "deleted", None, None, ""),
    ]
    assert parse_codex_patch("*** Update File: a.py") is None


_UNIFIED = """diff --git a/a.py b/a.py
index 1..2 100644
--- a/a.py
+++ b/a.py
@@ -1,3 +1,3 @@
 x
--- y
+++ z
 w
@@ -10 +10,2 @@ def f():
 a
+b
--- /dev/null
+++ b/new.py
@@ -0,0 +1,2 @@
+one
+two
--- a/gone.py
+++ /dev/null
@@ -1 +0,0 @@
-one
\\ No newline at end of file
"""


def test_the_files_of_a_unified_diff() -> None:
    first = "@@ -1,3 +1,3 @@\n x\n--- y\n+++ z\n w\n@@ -10 +10,2 @@ def f():\n a\n+b\n"
    assert parse_unified_diff(_UNIFIED) == [
        PatchedFile("a.py", "changed", 2, 1, first),
        PatchedFile("new.py", "created", 2, 0, "@@ -0,0 +1,2 @@\n+one\n+two\n", text="one\ntwo\n"),
        PatchedFile("gone.py", "deleted", 0, 1, "@@ -1 +0,0 @@\n-one\n\\ No newline at end of file\n"),
    ]


@pytest.mark.parametrize(
    "text",
    ["", "--- a\n+++ b\n", "--- a\n+++ b\n@@ -1,3 +1,3 @@\n x\n-y\n", "--- a\n+++ b\n@@ -1 +1 @@\n?\n"],
)
def test_a_text_whose_hunks_are_not_whole_is_no_diff(text: str) -> None:
    assert parse_unified_diff(text) is None


_LINES = st.lists(st.sampled_from(["a", "b", "", "-- x", "++ y", "@@ -1 +1 @@"]), min_size=1, max_size=20)


@given(_LINES, _LINES)
def test_a_unified_diff_is_counted_as_it_was_made(old: list[str], new: list[str]) -> None:
    lines = list(difflib.unified_diff(old, new, "a/f", "b/f", lineterm=""))
    parsed = parse_unified_diff("\n".join(lines) + "\n")
    if not lines:
        assert parsed is None
        return
    hunks = [
        line for line in lines[2:] if not (line.startswith("@@") and line.endswith("@@") and " +" in line)
    ]
    assert parsed is not None
    (file,) = parsed
    assert file.path == "f"
    assert file.additions is not None
    assert file.deletions is not None
    assert file.additions - file.deletions == len(new) - len(old)
    assert file.additions >= sum(line.startswith("+") for line in hunks)


def test_blocks_of_search_and_replace() -> None:
    text = (
        "Change it:\n\na.py\n```python\n<<<<<<< SEARCH\nx = 1\n=======\nx = 2\ny = 3\n>>>>>>> REPLACE\n```\n"
        "------- SEARCH\nold\n=======\n+++++++ REPLACE\n"
        "<<<<<<< SEARCH\n:start_line:10\n-------\nold\n=======\nnew\n>>>>>>> REPLACE\n"
    )
    assert parse_search_blocks(text) == [
        Replacement("x = 1\n", "x = 2\ny = 3\n"),
        Replacement("old\n", ""),
        Replacement("old\n", "new\n"),
    ]
    assert parse_search_blocks("<<<<<<< SEARCH\nx\n=======\ny\n") == []
