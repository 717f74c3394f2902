"""Recognizes a history whose client no longer sends all of it.

Some clients drop their oldest messages at each turn, drop old tool results, or shorten old messages. Then a
request begins differently each time, and its chain is another one. What is left ends like an earlier request,
so the newest messages of each recorded request are kept. A run of them in a later request, up to the last
one, is the proof that the history before them is the same, if the run is long enough and if nothing else
speaks against it. Knows no wire format and no store. A missed match costs a summary; a wrong one corrupts a
session.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Final

from gateway.core.history.conversation import GONE, Conversation, Trim
from gateway.core.history.message import Message
from gateway.core.history.shared_list import SharedList
from gateway.core.history.spans import Span, Spans

# The run must be so long, and a search begins with so many messages before a place.
_PROOF_MESSAGES: Final = 4
# The run must hold so many bytes: `ok` and `continue` say nothing.
_PROOF_BYTES: Final = 1_000
# So many messages are compared, and so many are stored. If all of these are found, nothing before them is
# compared.
_MOST_MESSAGES: Final = 2_000
STORED_MESSAGES: Final = 64
_MAX_OPENING: Final = 32
# A client goes on a few turns behind the request that it continues.
_MAX_ENDS: Final = 32
# A client may put a note such as "12 messages skipped" in place of what it drops.
_MAX_NOTE_BYTES: Final = 300
# A hash in hex.
_HEX_CHARS: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryEnd:
    """The newest messages of an answered request. A record."""

    owner: str
    # See find_ends.
    key: str
    # Messages of the whole history.
    length: int
    # The fingerprints of the opening in hex, joined; empty if the client has dropped it.
    opening: str
    # The newest messages: fingerprints in hex, joined; sizes in bytes; a checksum of role and ids of each.
    fingerprints: str
    sizes: tuple[int, ...]
    shapes: tuple[int, ...]
    # The chain in hex, joined, from the first of them on that it is known for, to the end.
    links: str
    # There are older messages.
    is_cut: bool = False
    # Different histories end with the messages of the key, and cannot be told apart.
    is_crowded: bool = False

    @property
    def known(self) -> int:
        """How many of the newest messages the chain is known for."""
        return len(self.links) // _HEX_CHARS - 1


def find_ends(owner_root: bytes, scope: bytes, messages: Sequence[Message]) -> Iterator[tuple[int, str]]:
    """Where an earlier request may have ended, the last place first, and the key of its record.

    That is before each reply. owner_root: the chain's first link. scope: of upstream, model and tools.
    """
    found = 0
    for end in range(len(messages) - 1, _PROOF_MESSAGES - 1, -1):
        if messages[end].role == "assistant" != messages[end - 1].role:
            yield end, _make_key(owner_root, scope, messages[end - _PROOF_MESSAGES : end])
            found += 1
            if found == _MAX_ENDS:
                return


def find_end_key(scope: bytes, conversation: Conversation, length: int) -> str | None:
    """The key for the first `length` messages; None if they are too few."""
    first = length - _PROOF_MESSAGES
    if first < (conversation.trim.end if conversation.trim is not None else 0):
        return None
    return _make_key(conversation.chain[0], scope, conversation.messages[first:length])


def make_history_end(
    owner: str, key: str, conversation: Conversation, most: int = _MOST_MESSAGES
) -> HistoryEnd:
    """The record of a request, with so many messages at most."""
    messages, chain, trim = conversation.messages, conversation.chain, conversation.trim
    length = len(messages)
    first, known_from = (trim.end, trim.known_from) if trim is not None else (0, 0)
    kept = messages[max(length - most, first) :]
    known = min(len(kept), length - known_from)
    opening = messages[: conversation.opening_end]
    return HistoryEnd(
        owner=owner,
        key=key,
        length=length,
        opening=_join(opening) if len(opening) <= _MAX_OPENING else "",
        fingerprints=_join(kept),
        sizes=tuple([message.size_bytes for message in kept]),
        shapes=tuple(map(_describe_shape, kept)),
        links=b"".join(chain[length - known :]).hex(),
        is_cut=first < length - most,
    )


def continue_history(known: HistoryEnd, received: Conversation, end: int) -> Conversation | None:
    """The received conversation as the continuation of a recorded history; None without proof.

    end: where the recorded request ended, among the received messages.
    """
    if known.is_crowded or any(message.is_opaque for message in received.messages):
        return None
    fingerprints, messages = _split(known.fingerprints), received.messages
    run = _count_run(fingerprints[-known.known :], messages[:end])
    if (
        run < _PROOF_MESSAGES
        or sum(message.size_bytes for message in messages[end - run : end]) < _PROOF_BYTES
    ):
        return None
    run = _lengthen_run(known, fingerprints, messages[:end], run)
    begin, known_from = end - run, known.length - run
    if not begin <= known_from != 0:
        return None
    start = _find_opening(known, received, begin, run)
    if start is None:
        return None
    links = [bytes.fromhex(link) for link in _split(known.links)[-run - 1 :]]
    return _make_trimmed(received, Trim(start, start + known_from - begin, known_from), links, end)


def _count_run(fingerprints: Sequence[str], messages: Sequence[Message]) -> int:
    """How many messages at the end of both are the same."""
    pairs = zip(reversed(fingerprints), reversed(messages), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1].fingerprint.hex(), pairs))


def _lengthen_run(
    known: HistoryEnd, fingerprints: Sequence[str], messages: Sequence[Message], run: int
) -> int:
    """The length of the run with the shorter forms before it that a client has put in place of messages."""
    opening = _split(known.opening)
    has_opening = _begins_with(messages, opening)
    most = min(known.known, known.length - len(opening), len(messages) - has_opening * len(opening))
    while run < most:
        message, fingerprint = messages[-run - 1], messages[-run - 1].fingerprint.hex()
        if fingerprint != fingerprints[-run - 1] and (
            fingerprint in fingerprints or not _is_shorter_form(known, -run - 1, message)
        ):
            break
        run += 1
    return run


def _is_shorter_form(known: HistoryEnd, at: int, message: Message) -> bool:
    return message.size_bytes < known.sizes[at] and _describe_shape(message) == known.shapes[at]


def _find_opening(known: HistoryEnd, received: Conversation, begin: int, run: int) -> int | None:
    """How many messages before the run are an opening that stays; None if what is before the run speaks
    against the match.

    The opening itself, or what stands in its place if nothing was dropped behind it. Otherwise 0: what is
    left before the run was in the history, and a pivot stands for that.
    """
    opening, before = _split(known.opening), received.messages[:begin]
    has_opening = _begins_with(before, opening)
    start = len(opening) if has_opening else 0
    is_long = known.is_cut and run == len(known.sizes)
    if opening and not has_opening and begin == known.length - run and (is_long or begin == len(opening)):
        return min(begin, received.opening_end)
    if is_long:
        return start
    earlier = _split(known.fingerprints)[:-run]
    return start if _is_left_over(earlier, before[start:], may_note=start > 0) else None


def _begins_with(messages: Sequence[Message], opening: Sequence[str]) -> bool:
    return [message.fingerprint.hex() for message in messages[: len(opening)]] == opening


def _is_left_over(earlier: Sequence[str], messages: Sequence[Message], *, may_note: bool) -> bool:
    """Whether these are some of the earlier messages, in their order.

    may_note: a note of the client may be among them.
    """
    position = len(earlier)
    for message in reversed(messages):
        fingerprint = message.fingerprint.hex()
        at = next((at for at in range(position - 1, -1, -1) if earlier[at] == fingerprint), None)
        if at is not None:
            position = at
        elif may_note and message.role == "user" and message.size_bytes <= _MAX_NOTE_BYTES:
            may_note = False
        else:
            return False
    return True


def _make_trimmed(received: Conversation, trim: Trim, links: Sequence[bytes], end: int) -> Conversation:
    """links: from the run's beginning to its end, which is before the received message at `end`."""
    messages = received.messages
    added = accumulate((message.fingerprint for message in messages[end:]), _add_link, initial=links[-1])
    # What stands before the run has links that no other conversation has.
    before = hashlib.sha256(b"trimmed:" + received.key).digest()
    return Conversation(
        received.leading,
        SharedList([*messages[: trim.start], *[GONE] * trim.length, *messages[trim.start :]]),
        SharedList([received.chain[0], *[before] * (trim.known_from - 1), *links[:-1], *added]),
        trim.start,
        Spans([_shift(span, trim) for span in received.spans]),
        trim,
    )


def _shift(span: Span, trim: Trim) -> Span:
    return Span(*(place if place < trim.start else place + trim.length for place in span))


def _make_key(owner_root: bytes, scope: bytes, messages: Sequence[Message]) -> str:
    state = hashlib.sha256(b"end:" + owner_root + hashlib.sha256(scope).digest())
    for message in messages:
        state.update(message.fingerprint)
    return state.hexdigest()


def _add_link(link: bytes, fingerprint: bytes) -> bytes:
    return hashlib.sha256(link + fingerprint).digest()


def _describe_shape(message: Message) -> int:
    names = [message.role, *[call.id for call in message.calls], "", *message.results]
    digest = hashlib.sha256("\0".join(names).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:4])


def _join(messages: Sequence[Message]) -> str:
    return b"".join([message.fingerprint for message in messages]).hex()


def _split(hashes: str) -> list[str]:
    return [hashes[at : at + _HEX_CHARS] for at in range(0, len(hashes), _HEX_CHARS)]
