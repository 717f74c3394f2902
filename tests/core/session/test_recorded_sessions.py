"""What thirteen recorded sessions did, against what was counted by hand.

`recorded_sessions.json` was made without the code that is tested: results were read, files were put together
from the calls and compared by `diff -U0`; where a call does not tell how many lines it changed, the change is
unknown.
"""

import json
from collections import Counter
from pathlib import Path

import pytest

from gateway.core.history.message import Call, Message, Role
from gateway.core.session.reader import SessionReader
from gateway.core.session.work import SessionWork, list_touched_files
from gateway.wire.formats.chat.text import parse_entry
from tests.shared_data import SHARED, requires_shared

_TRANSCRIPTS = SHARED / "data" / "transcripts"
_EXPECTED = json.loads(Path(__file__).with_name("recorded_sessions.json").read_text("utf-8"))
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "tool": "tool", "system": "system"}


def _read(path: Path) -> SessionWork:
    reader = SessionReader()
    for position, raw in enumerate(json.loads(path.read_text("utf-8"))["messages"]):
        calls = tuple(Call(call["id"], call["function"]["name"]) for call in raw.get("tool_calls") or ())
        results = (raw["tool_call_id"],) if raw["role"] == "tool" else ()
        message = Message(
            role=_ROLES[raw["role"]], key=b"", fingerprint=b"", size_bytes=0, calls=calls, results=results
        )
        reader.feed(position, message, parse_entry(json.dumps(raw).encode()))
    return reader.work()


@requires_shared
@pytest.mark.parametrize("name", _EXPECTED)
def test_the_work_of_a_recorded_session_is_what_was_counted_by_hand(name: str) -> None:
    work, expected = _read(_TRANSCRIPTS / name), _EXPECTED[name]
    files = {
        file.path: {
            "kind": file.kind,
            "changes": file.changes,
            "additions": file.additions,
            "deletions": file.deletions,
            "unknown": file.unknown,
        }
        for file in list_touched_files(work.changes)
    }
    codes = Counter("untold" if run.exit_code is None else str(run.exit_code) for run in work.commands)
    assert files == expected["files"]
    assert len(work.commands) == expected["commands"]
    assert codes == expected["exit_codes"]
    assert not work.todos
