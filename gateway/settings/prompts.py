"""The texts that compaction uses, kept as files so that they can be read and compared with their source.

Source: document 000 §6.1 (system), §6.2 (instruction), §6.3 (question), §4.3 (resume).
"""

from dataclasses import dataclass
from pathlib import Path

from gateway.settings.folder import find_config_folder


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """system and instruction: for the summariser. question: what a summary without an opening answers.
    resume: what the user says after a summary, so that the model goes on."""

    system: str
    instruction: str
    question: str
    resume: str


def load_prompts() -> Prompts:
    folder = find_config_folder() / "prompts"
    return Prompts(
        system=_load_text(folder / "system.txt"),
        instruction=_load_text(folder / "instruction.txt"),
        question=_load_text(folder / "question.txt"),
        resume=_load_text(folder / "resume.txt"),
    )


def _load_text(path: Path) -> str:
    return path.read_text(encoding="utf-8").rstrip("\n")
