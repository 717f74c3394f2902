"""What the result of a tool call tells: whether an edit was made, and how a command ended.

Each agent says it in its own words; the patterns are from recorded sessions and from the agents' sources.
"""

import json
import re
from typing import Final

from gateway.core.counts import is_count

# How far into a result such words are looked for; behind it an editor shows the file.
_BEGINNING_CHARS: Final = 300
_END_CHARS: Final = 400
# A command's result as JSON is not parsed beyond this.
_LONGEST_JSON_CHARS: Final = 2_000_000

# A result that begins so is an error, whatever follows.
_FAILED_BEGINNING: Final = re.compile(
    r"\s*(?:<tool_use_error>|<error>|\[?(?:tool )?error\b|\w*error:|fail(?:ed|ure)\b|traceback \(|ran into \["
    r"|the user doesn't want|the user rejected|user rejected|\[request interrupted|exit code:? [1-9-]"
    r'|apply_patch verification failed|no replacement was performed|\{"(?:error|is_error)")',
    re.IGNORECASE,
)
_DONE: Final = re.compile(
    r"\bsuccess(?:ful|fully|\b)|\bhas been (?:updated|edited|created|modified|written|replaced|saved)"
    r"|\bhave been (?:applied|updated|made)|\btext replaced|\breplaced [1-9]|\bapplied [1-9]\d* (?:edit|diff)"
    r"|\bcontent replaced|\bfile (?:created|written|updated|edited|modified)|\bwrote \d|\bdone!?$"
    r"|<operation>|\bupdated cell|\binserted (?:new )?cell|\bdeleted cell",
    re.IGNORECASE | re.MULTILINE,
)
_NOT_DONE: Final = re.compile(
    r"error|fail|not found|no such|unable|can ?not|can't|couldn't|could not|did not|does not exist|invalid"
    r"|denied|reject|abort|cancel|interrupt|no match|no changes|no occurrence|0 (?:occurrence|replacement)"
    r"|must |not been|already exists|unexpected|missing|multiple|\d (?:matches|occurrences)|not unique"
    r"|is required|blocked|not allowed|not permitted|timed out|cleared|compacted|omitted|running|background",
    re.IGNORECASE,
)
# The command was not run at all.
_NOT_RUN: Final = re.compile(
    r"\s*(?:<tool_use_error>|the user doesn't want|the user rejected|user rejected|\[request interrupted"
    r"|permission (?:to use|for this)|error: the user rejected)",
    re.IGNORECASE,
)
_CREATED: Final = re.compile(
    r"\bcreated\b|\bnew file\b|^A \S|<operation>created</operation>", re.IGNORECASE | re.MULTILINE
)
_CODE: Final = r"(-?\d{1,10})"
# Where the agent writes the code before the output: what follows is the command's own.
_CODE_FIRST: Final = tuple(
    re.compile(pattern)
    for pattern in (
        rf"\AExit code:? {_CODE}(?:\n|\Z)",  # Claude Code (only if it is not 0), Codex
        rf"\A(?:Chunk ID: [^\n]*\n)?(?:Wall time: [^\n]*\n)?Process exited with code {_CODE}\n",  # Codex
        rf"\A\s*<(?:returncode|exit_code|exitcode)>\s*{_CODE}\s*</",  # mini-swe-agent
        rf"\ACommand (?:executed|failed)(?: in terminal[^\n]*?)?[,.]? ?(?:with )?[Ee]xit code:? {_CODE}\b",
        rf"\ACommand \"[^\n]*\" failed with exit code {_CODE}\b",
    )
)
# Where it is the last thing that the agent writes.
_CODE_LAST: Final = tuple(
    re.compile(pattern)
    for pattern in (
        rf"\[Command finished with exit code {_CODE}\]\s*\Z",  # OpenHands
        rf"\[The command completed with exit code {_CODE}\.\][^\n]*\s*\Z",
        rf"(?:\A|\n)Command exited with code {_CODE}\s*\Z",  # pi
        rf"\nExit code:? {_CODE}\s*\Z",  # Crush
        rf"<exited with exit code {_CODE}>\s*\Z",  # Copilot
        rf"<(?:returncode|exit_code|exitcode)>\s*{_CODE}\s*</(?:returncode|exit_code|exitcode)>\s*\Z",
    )
)
# Gemini CLI and Qwen Code write a report whose last lines are these.
_REPORT: Final = re.compile(
    rf"\n(?:Exit Code: {_CODE}|Exit Code: \(none\))\n(?:(?:Signal|Background PIDs|Process Group PGID|PIDs?):"
    r"[^\n]*(?:\n|\Z))*\s*\Z"
)
_CODE_KEYS: Final = ("exit_code", "exitCode", "returncode", "return_code", "exit_status")


def is_done(result: str, *, is_error: bool) -> bool:
    """Whether an edit was made. Words of success count before words of failure, because an editor may show
    what it wrote; a result without either counts as success.
    """
    beginning = result[:_BEGINNING_CHARS]
    if is_error or _FAILED_BEGINNING.match(beginning):
        return False
    code = find_exit_code(result)
    if code is not None:
        return code == 0
    return bool(_DONE.search(beginning)) or not _NOT_DONE.search(beginning)


def says_created(result: str) -> bool:
    """Whether the result of a write says that the file is new."""
    return bool(_CREATED.search(result[:_BEGINNING_CHARS]))


def was_run(result: str) -> bool:
    """Whether a command was run, and not refused by the user."""
    return not _NOT_RUN.match(result[:_BEGINNING_CHARS])


def find_exit_code(result: str) -> int | None:
    """None if the result does not tell."""
    if result.startswith("{"):
        return _find_in_json(result)
    beginning, end = result[:_BEGINNING_CHARS], result[-_END_CHARS:]
    for pattern in _CODE_FIRST:
        if found := pattern.search(beginning):
            return int(found.group(1))
    for pattern in _CODE_LAST:
        if found := pattern.search(end):
            return int(found.group(1))
    report = _REPORT.search(end) if result.startswith("Command: ") else None
    return int(report.group(1)) if report and report.group(1) else None


def _find_in_json(result: str) -> int | None:
    """`{"output": …, "metadata": {"exit_code": 0}}` and the like."""
    if len(result) > _LONGEST_JSON_CHARS or ('"exit' not in result and "return" not in result):
        return None
    try:
        value = json.loads(result)
    except (ValueError, RecursionError):
        return None
    metadata = value.get("metadata") if isinstance(value, dict) else None
    for fields in (value, metadata):
        for key in _CODE_KEYS:
            code = fields.get(key) if isinstance(fields, dict) else None
            if isinstance(code, int) and is_count(abs(code)) and not isinstance(code, bool):
                return code
    return None
