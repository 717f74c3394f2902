"""Which reader understands a file, by what it holds. Its name does not matter."""

from typing import Final, Protocol

from gateway.replay.errors import NotARecording
from gateway.replay.readers import claude_code, codex, gateway_export, opencode, request_log, transcript
from gateway.replay.readers.document import RecordedFile, describe_keys
from gateway.replay.recording import Recording


class RecordingReader(Protocol):
    def claims(self, document: RecordedFile) -> bool:
        """Whether the document has its form. Looks at a sample only."""

    def read(self, document: RecordedFile, model: str) -> Recording:
        """model: of recordings that name none."""


# The forms of programs come first; nearly anything may be an entry of a log.
_READERS: Final[tuple[RecordingReader, ...]] = (
    gateway_export,
    claude_code,
    codex,
    opencode,
    transcript,
    request_log,
)
FORMS: Final = (
    "request logs of OpenAI's and Anthropic's APIs, transcripts with messages, session files of Claude Code, "
    "Codex and opencode, and what `refold export` writes"
)


def find_reader(document: RecordedFile) -> RecordingReader:
    """Raises NotARecording."""
    reader = next((reader for reader in _READERS if reader.claims(document)), None)
    if reader is None:
        raise NotARecording(f"it holds {describe_keys(document)}; known are {FORMS}")
    return reader
