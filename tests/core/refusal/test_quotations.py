import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.refusal.quotations import without_quotations


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("This model's maximum is 5.", "This model's maximum is 5."),
        ("Invalid value: 'too long for you'. Try again.", "Invalid value:  . Try again."),
        ("Invalid value: \"say 'hello there' now\" given", "Invalid value:   given"),
        ("Invalid value: 'one 'two three' four' given", "Invalid value:   given"),
        ("Invalid value: 'it's what they don't know' given", "Invalid value:   given"),
        ("bad input_value='a b', input_type=str", "bad input_value= , input_type=str"),
        ("bad “a b” given", "bad   given"),
        ("never closed: 'please explain it all", "never closed:  "),
        ("`inputs` tokens + `max_new_tokens` must", "`inputs` tokens + `max_new_tokens` must"),
        ("field 'context_length_exceeded_behavior' is unknown", "field   is unknown"),
        (
            "400 - {'error': {'message': \"It is too long\", 'code': 'too_long'}}",
            "400 - {'error': {'message': \"It is too long\", 'code': 'too_long'}}",
        ),
        ('"The whole text is quoted"', '"The whole text is quoted"'),
        ("", ""),
    ],
)
def test_quotations_are_removed_and_other_text_stays(text: str, expected: str) -> None:
    assert without_quotations(text) == expected


_PIECES = st.sampled_from(
    ["'", '"', "`", "“", "”", " ", "a", "b c", ":", ".", "message: ", "{", "=", "exceed"]
)


@given(st.lists(_PIECES).map("".join))
def test_removing_quotations_adds_and_moves_nothing(text: str) -> None:
    rest = iter(text)
    assert all(character == " " or character in rest for character in without_quotations(text))


@given(st.text(alphabet="abc .,:(){}0189"))
def test_a_text_without_quotation_marks_stays_as_it_is(text: str) -> None:
    assert without_quotations(text) == text
