from gateway.downstream.request_note import RequestNote


def test_a_note_that_nothing_was_noted_in_is_of_a_request_that_no_upstream_got() -> None:
    note = RequestNote()
    assert (note.name_plan(), note.format, note.usage) == ("local", "other", None)
    note.add_exchange("openai", 1.0, None, 3.0)
    assert (note.name_plan(), note.upstream_seconds, note.first_byte_seconds) == ("relayed", 2.0, None)


def test_notes_of_two_requests_are_apart() -> None:
    one, other = RequestNote(), RequestNote()
    one.add_exchange("openai", 1.0, 2.0, 3.0)
    assert (other.upstream, other.upstream_seconds) == (None, 0.0)


def test_clocks_that_disagree_give_no_negative_time() -> None:
    note = RequestNote()
    note.waited_seconds = 50.0
    assert note.count_own_seconds(note.read_seconds + 1) == 0.0
