"""The chart as a file."""

from xml.etree import ElementTree

from gateway.replay.svg import Panel, render_svg
from tests.replay.samples import make_run

_SVG = "{http://www.w3.org/2000/svg}"


def _render() -> str:
    runs = [make_run(received=1_000 * at, sent=900, soft=3_000, hard=4_000) for at in range(1, 9)]
    runs[4] = make_run(received=5_000, sent=700, change="compaction", soft=3_000, hard=4_000)
    return render_svg("a <name> & more", [Panel("adaptive", runs), Panel("<rolling>", runs)])


def test_it_is_valid_and_says_in_words_what_it_shows() -> None:
    root = ElementTree.fromstring(_render())
    title, description = root.find(f"{_SVG}title"), root.find(f"{_SVG}desc")
    assert title is not None
    assert title.text == "Tokens per request of a <name> & more"
    assert description is not None
    assert "adaptive: 8 requests, 36.0K tokens received, 7.00K sent" in (description.text or "")
    assert root.get("aria-labelledby") == "title desc"


def test_each_policy_has_a_panel_with_its_lines_and_marks() -> None:
    root = ElementTree.fromstring(_render())
    lines = [each.get("class") for each in root.iter(f"{_SVG}polyline")]
    assert lines == ["hard", "soft", "received", "sent"] * 2
    marks = [each for each in root.iter(f"{_SVG}line") if each.get("class") == "mark compaction"]
    assert len(marks) == 2
    assert marks[0].findtext(f"{_SVG}title") == "request 5: compaction, 700 tokens sent"


def test_it_has_colours_for_light_and_dark_and_refers_to_nothing_outside() -> None:
    text = _render()
    assert "prefers-color-scheme: dark" in text
    for outside in ("href", "url(", "@import", "<script", "<image"):
        assert outside not in text
