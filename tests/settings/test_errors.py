"""The message of a settings error."""

from gateway.settings.errors import Problem, SettingsError


def test_the_message_has_one_line_for_each_problem() -> None:
    error = SettingsError([Problem("f.yaml:1", "is bad"), Problem("--port", "is worse")])
    assert str(error) == "f.yaml:1: is bad\n--port: is worse"
    assert [problem.where for problem in error.problems] == ["f.yaml:1", "--port"]
