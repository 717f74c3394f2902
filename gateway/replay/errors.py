"""What ends a replay before it begins: a file, a policy or an option that cannot be used."""


class ReplayError(Exception):
    """The text can be shown to the person who typed the command."""


class NotARecording(ReplayError):
    """A file that no reader understands. The text says what was seen instead."""
