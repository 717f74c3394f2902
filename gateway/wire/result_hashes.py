"""One message as a skeleton: a digest of all but its tool results' contents, and a digest of each content.

Whatever a format's digest leaves out or evens out, its skeleton does too: the same reader reads the frame.
"""

import msgspec

from gateway.core.errors import Unreadable
from gateway.core.history.cleared_results import SplitFingerprint, fingerprint_result
from gateway.core.history.message import Message
from gateway.wire.canonical import canonical_part, flatten_content
from gateway.wire.formats.registry import WireFormat


def read_skeleton(form: WireFormat, message: Message, raw: bytes) -> SplitFingerprint | None:
    """message: the facts of the slice. None where it cannot be taken apart."""
    if not message.results:
        return SplitFingerprint(message.fingerprint)
    try:
        opened = form.open_results(raw)
        frame = form.read_message(opened.frame, b"").fingerprint
        return SplitFingerprint(frame, tuple([_digest_content(content) for content in opened.contents]))
    except (Unreadable, msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _digest_content(content: object) -> bytes:
    texts, parts = flatten_content(content)
    return fingerprint_result("".join(texts), [canonical_part(part) for part in parts])
