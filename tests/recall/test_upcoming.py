"""What of the replaced messages stands behind a summary."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.search.cutting import estimate_tokens
from gateway.originals.parts import Part
from gateway.recall.upcoming import PieceChooser, PlacedPart, join_neighbors

_FILLER = "The work went on, and nothing of it is worth a name. " * 3


def place(position: int, text: str, role: str = "tool", covers: int = 100) -> PlacedPart:
    return PlacedPart(position, covers - position, Part(0, role, "read", None, text))


def choose(*placed: PlacedPart, visible: str = "", max_tokens: int = 400) -> list[tuple[int, str]]:
    chooser = PieceChooser(visible)
    chooser.add(placed)
    return [(piece.position, piece.text) for piece in chooser.choose("c1", max_tokens)]


def test_what_was_named_last_comes_first() -> None:
    old, new = place(5, "src/old/parser.py"), place(90, "src/new/parser.py")
    assert [position for position, _ in choose(old, new)] == [90, 5]


def test_what_the_model_named_itself_comes_before_what_it_read() -> None:
    said, read = place(80, "src/mine/a.py", "assistant"), place(80, "src/read/a.py")
    assert [text for _, text in choose(read, said)] == ["src/mine/a.py", "src/read/a.py"]


def test_what_is_visible_already_is_not_brought_back() -> None:
    assert choose(place(90, "src/new/parser.py"), visible="Changed src/new/parser.py.") == []
    assert choose(place(90, _FILLER)) == []


def test_a_name_is_brought_once() -> None:
    assert len(choose(place(90, "src/a/x.py"), place(91, "src/a/x.py again"))) == 1


def test_pieces_that_follow_one_another_are_one() -> None:
    text = "".join(f"line {at}: src/mod_{at}/file_{at}.py\n" for at in range(20))
    chooser = PieceChooser("")
    chooser.add([place(9, text)])
    pieces = chooser.choose("c1", 1_000)
    assert len(pieces) > 1
    (joined,) = join_neighbors(pieces)
    assert (joined.text, joined.start, joined.end, joined.position) == (text, 0, len(text), 9)


@given(st.lists(st.tuples(st.integers(0, 99), st.text(max_size=900)), max_size=8), st.integers(0, 600))
def test_pieces_are_parts_of_the_originals_within_their_tokens(
    said: list[tuple[int, str]], max_tokens: int
) -> None:
    names = "a_name_of_it src/x/y.py\n"
    placed = [place(position, f"{names}{text}") for position, text in said]
    pieces = choose(*placed, max_tokens=max_tokens)
    assert all(any(text in each.part.text for each in placed if each.position == at) for at, text in pieces)
    assert sum(estimate_tokens(text) for _, text in pieces) <= max_tokens
    assert pieces == choose(*placed, max_tokens=max_tokens)


def test_much_text_is_read_up_to_a_bound() -> None:
    chooser = PieceChooser("")
    for position in range(99, 0, -1):
        chooser.add([place(position, f"src/m{position}/x.py " + "word " * 3_000)])
        if chooser.is_full:
            break
    assert chooser.is_full and position > 1
