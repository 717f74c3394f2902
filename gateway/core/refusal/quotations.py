"""Takes out what an error message quotes: the words of a user must not be read as the words of the upstream.

Knows nothing of JSON. An identifier in quotes stays (`max_tokens`), and so does the text behind a key such as
`"message":`, because many gateways wrap the whole error of another one in their own message.
"""

import re

_MARK = re.compile("['\"`“”‘’]")
_CLOSING = {"“": "”", "‘": "’"}
# A quotation begins behind one of these and before a letter, a digit or a bracket: never inside a word
# ("model's"), never behind the last word of a sentence.
_BEFORE_OPENING = frozenset(" \t\n(=:[{,>-")
_NEVER_AFTER_OPENING = frozenset(" \t\n,.;:)}]'\"`")
# Behind these keys stands what the upstream says itself.
_OWN_WORDS = re.compile(
    r"(?:message|msg|detail|error|code|type|reason|raw|title)['\"]?\s*[:=]\s*$", re.IGNORECASE
)
_LOOK_BACK = 24
# A name of a parameter; a code that speaks of overflow may have been sent by the user.
_IDENTIFIER = re.compile(r"(?!.*(?:exceed|overflow))[\w.\[\]-]{1,40}", re.IGNORECASE)


def without_quotations(text: str) -> str:
    """Each quotation becomes a space. One that is never closed runs to the end of the text."""
    kept: list[str] = []
    begun = 0  # of what is kept, or of the quotation that is open
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
    """How much deeper: quotations of the same mark may be nested."""
    if text[place] == mark and _is_opening(text, place):
        return 1
    behind = text[place + 1 : place + 2]
    return -1 if text[place] == _CLOSING.get(mark, mark) and not behind.isalnum() else 0


def _is_opening(text: str, place: int) -> bool:
    before, behind = text[place - 1 : place], text[place + 1 : place + 2]
    return before in _BEFORE_OPENING and behind != "" and behind not in _NEVER_AFTER_OPENING


def _is_own(text: str, place: int) -> bool:
    """A nested object, or the value of a key that holds the upstream's words."""
    if text[place + 1] in "{[":
        return True
    return _OWN_WORDS.search(text[max(0, place - _LOOK_BACK) : place]) is not None
