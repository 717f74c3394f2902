"""What ends a replay before it begins."""

from gateway.replay.errors import NotARecording, ReplayError


def test_a_file_that_is_no_recording_may_end_a_replay() -> None:
    assert issubclass(NotARecording, ReplayError)
