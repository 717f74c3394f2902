import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.digest.facts import LONGEST_FACT_CHARS, find_facts, is_secret


def test_noise_is_no_fact() -> None:
    text = "2>/dev/null /path/to/file.py `.jsonl` `sed` `agent-*.jsonl` src/a.py-24-import /b/c.go-26"
    assert find_facts(text) == ("src/a.py", "/b/c.go")
    assert find_facts("`.env` `.gitignore`") == (".env", ".gitignore")


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("See src/a.py, ./b/c.ts:12 and docs/x.md.", ("src/a.py", "b/c.ts", "docs/x.md")),
        ("in /usr/lib/x and ~/notes/todo but not /tmp", ("/usr/lib/x", "~/notes/todo")),
        (r"open C:\Users\me\a.txt or D:/b/c", (r"C:\Users\me\a.txt", "D:/b/c")),
        (r"as JSON C:\\Users\\me", (r"C:\Users\me",)),
        ("and/or text/html 1/2 </div> foo\\nbar.py ${x}/a/b.ts", ()),
        ("diff --git a/src/x.py b/src/x.py", ("src/x.py",)),
    ],
)
def test_only_unambiguous_paths_are_found(text: str, facts: tuple[str, ...]) -> None:
    assert find_facts(text) == facts


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("(see https://example.org/a/b.html).", ("https://example.org/a/b.html",)),
        ("https://me:pw@example.org:8443/x?token=abc#t", ("https://example.org:8443/x",)),
        ("postgres://u:p@db.internal/app", ("postgres://db.internal/app",)),
        ("postgres://u:p/w@db.internal/app.html", ()),
        ("http://localhost:8000/v1", ("http://localhost:8000/v1",)),
        ("https://token@", ()),
        ("a://b", ()),
    ],
)
def test_urls_lose_users_and_queries(text: str, facts: tuple[str, ...]) -> None:
    assert find_facts(text) == facts


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("call `run_all()` with `--fast`", ("run_all()", "--fast")),
        ("`src/a.py:10-20` and ```x``` and `two words` and `12`", ("src/a.py",)),
        ("KeyError, then E4711 and TS2345", ("KeyError", "E4711", "TS2345")),
        ("HTTP/1.1 503, status code 404, Status: 500", ("HTTP 503", "HTTP 404", "HTTP 500")),
        ("ENOENT: no such file; ENOTHING", ("ENOENT",)),
        ("404 apples, an Error, E12", ()),
    ],
)
def test_names_in_backticks_and_error_codes_are_found(text: str, facts: tuple[str, ...]) -> None:
    assert find_facts(text) == facts


@pytest.mark.parametrize(
    "fact",
    [
        "sk-proj-abcdefghijklmnop",
        "ghp_0123456789abcdefABCDEF",
        "AKIAIOSFODNN7EXAMPLE",
        "9f86d081884c7d659a2feaa0c55ad015",
        "API_KEY=hunter2",
        "password:hunter2",
        "todo: fetch https://me:pw@example.org/a",
        "https://hooks.example.com/T0/B0/aB3dE5fG7hI9jK1lM2nO",
        "https://x.example/0b5c1f8e-4d0a-4f5c-9a57-5a2c52a4c111",
        "/etc/keys/9f86d081884c7d659a2feaa0c55ad015.pem",
    ],
)
def test_a_text_like_a_key_is_a_secret(fact: str) -> None:
    assert is_secret(fact)


@pytest.mark.parametrize(
    "fact",
    [
        "/home/me/.sessions/0b5c1f8e-4d0a-4f5c-9a57-5a2c52a4c111.jsonl",
        "TestCondenseSessionPhaseStateMachineOfManualCommits",
        "src/gateway/test_sha256_of_every_message.py",
        "https://example.org/a-long-title-about-many-things-2024",
        "keyboard_layout",
        "map_of_tokens()",
    ],
)
def test_a_long_name_is_not_a_secret(fact: str) -> None:
    assert not is_secret(fact)


def test_a_fact_that_is_too_long_is_left_out() -> None:
    assert find_facts("/a/" + "b" * LONGEST_FACT_CHARS + " /a/b") == ("/a/b",)


_ODD = st.lists(
    st.sampled_from(
        ["/", "a", "://", "http", "`", ".", ":", "\\", "@", "E1", "Error", " ", "\n", "\ud800", "C"]
    ),
    max_size=40,
).map("".join)


@given(_ODD)
def test_every_fact_is_one_printable_line_of_bounded_length(text: str) -> None:
    for fact in find_facts(text):
        assert fact.isprintable() and 2 < len(fact) <= LONGEST_FACT_CHARS
        assert isinstance(is_secret(fact), bool)


@pytest.mark.parametrize(
    "part", ["a", "a/", "//", "a://", "`a", "A", "Aa", "HTTP/1", ".a", "-", "C:\\a", "E1 "]
)
def test_hostile_repetition_takes_no_longer_than_other_text(part: str) -> None:
    """Quadratic time would exceed the time limit of the suite."""
    assert len(find_facts(part * (2_000_000 // len(part)))) < 3
