"""Removes quotations from an error message, so that the words of a user are not taken for the upstream's.

Knows no JSON. An identifier in quotes stays (`max_tokens`), and so does the text after a key such as
`"message":`, because many gateways wrap the whole error of another one in their own message.
"""

import re

_MARK = re.compile("['\"`“”‘’]")
_CLOSING = {"“": "”", "‘": "’"}
# A quotation begins after one of these and before a letter, a digit or a bracket, so that it begins neither
# inside a word ("model's") nor after the last word of a sentence.
_BEFORE_OPENING = frozenset(" \t\n(=:[{,>-")
_NEVER_AFTER_OPENING = frozenset(" \t\n,.;:)}]'\"`")
# The values of these keys are the upstream's own words.
_OWN_WORDS = re.compile(
    r"(?:message|msg|detail|error|code|type|reason|raw|title)['\"]?\s*[:=]\s*$", re.IGNORECASE
)
_LOOK_BACK = 24
# The name of a parameter. A code about overflow is removed, because the user may have sent it.
_IDENTIFIER = re.compile(r"(?!.*(?:exceed|overflow))[\w.\[\]-]{1,40}", re.IGNORECASE)


def without_quotations(text: str) -> str:
    """The text with a space for each quotation. One that is not closed extends to the end of the text."""
    kept: list[str] = []
    # The start of the text to keep, or of the open quotation.
    begun = 0
    mark, depth = "", 0
    for match in _MARK.finditer(text):
        place = match.start()
        if depth:
            depth += _step(text, place, mark)
            if not depth:
                quoted = text[begun : place + 1]
                kept.append(quoted if _IDENTIFIER.fullmatch(quoted[1:-1]) else " ")
                begun = place + 1
        elif _is_opening(text, place) and not _is_own(text, place):
            kept.append(text[begun:place])
            mark, depth, begun = text[place], 1, place
    kept.append(" " if depth else text[begun:])
    return "".join(kept)


def _step(text: str, place: int, mark: str) -> int:
    """The change of depth: quotations with the same mark may be nested."""
    if text[place] == mark and _is_opening(text, place):
        return 1
    behind = text[place + 1 : place + 2]
    return -1 if text[place] == _CLOSING.get(mark, mark) and not behind.isalnum() else 0


def _is_opening(text: str, place: int) -> bool:
    before, behind = text[place - 1 : place], text[place + 1 : place + 2]
    return before in _BEFORE_OPENING and behind != "" and behind not in _NEVER_AFTER_OPENING


def _is_own(text: str, place: int) -> bool:
    """Whether it is a nested object, or the value of a key for the upstream's own words."""
    if text[place + 1] in "{[":
        return True
    return _OWN_WORDS.search(text[max(0, place - _LOOK_BACK) : place]) is not None
