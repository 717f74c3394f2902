"""Single keys of a real terminal, a pty."""

import os
import pty
import termios

import pytest

from gateway.command_line.keyboard import Keyboard


def test_a_key_needs_no_return_and_the_terminal_gets_its_settings_back() -> None:
    person, terminal = pty.openpty()
    try:
        before = termios.tcgetattr(terminal)
        with pytest.raises(KeyboardInterrupt), Keyboard(terminal) as keyboard:
            assert termios.tcgetattr(terminal) != before
            assert keyboard.wait(0) == ""
            os.write(person, b"q")
            assert keyboard.wait(30) == "q"
            raise KeyboardInterrupt
        assert termios.tcgetattr(terminal) == before
    finally:
        os.close(person)
        os.close(terminal)
