"""Recognizes a history whose client no longer sends all of it as it was.

Some clients drop their oldest messages at each turn, clear or drop old tool results, or shorten old messages.
Then a request begins differently each time, and its chain is another one. What is left ends like an earlier
request, so the newest messages of each recorded request are kept. There are two classes of proof:

- Complete, tried first: every message is the recorded one, or has exactly a placeholder in place of some of
  its results.
- Partial: a run of the recorded messages, up to the last one, is the proof that the history before them is
  the same, if the run is long enough and if nothing else speaks against it. Where the client does not name
  its session, more is wanted: another person may begin with the words that a history ends with.

Either way the request goes on under the chain of the history. Knows no wire format and no store. A missed
match costs a summary; a wrong one corrupts a session.
"""

import hashlib
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise, takewhile
from typing import Final, NamedTuple

from gateway.core.history.conversation import GONE, Conversation, Span, Trim, add_link, merge_spans
from gateway.core.history.message import Message, fingerprint_result

# What clients write in place of a result that they clear, as found in their sources.
PLACEHOLDERS: Final = (
    # opencode (session/message-v2.ts; 000 in docs/sources.md) and Qwen Code
    # (microcompaction/microcompact.ts).
    "[Old tool result content cleared]",
    # LangChain: the default of ClearToolUsesEdit (agents/middleware/context_editing.py).
    "[cleared]",
    # The plugin opencode-dynamic-context-pruning (lib/messages/prune.ts).
    "[Output removed to save context - information superseded or no longer needed]",
)
# The run must be so long, and a search begins with so many messages before a place.
_PROOF_MESSAGES: Final = 4
# The run must hold so many bytes: `ok` and `continue` say nothing. What is said again does not count.
_PROOF_BYTES: Final = 1_000
# If the client does not name its session, all messages behind the opening that are the same hold so many, and
# the frame of each. Menus, notices and results that an application shows to everyone have up to 4 KB of text,
# and up to twice as many as JSON.
_UNNAMED_PROOF_BYTES: Final = 8_000
_FRAME_BYTES: Final = 100
# A client that drops the beginning goes on sending this share of its request before, or more. Whoever begins
# with what a history ended with has only that in common with it.
_UNNAMED_SHARE: Final = 0.5
# So many messages are compared. If the run holds all of them, nothing before them is compared.
_MOST_MESSAGES: Final = 2_000
# The chain is stored for so many at least.
STORED_LINKS: Final = 64
_MAX_OPENING: Final = 32
# A client goes on a few turns behind the request that it continues.
_MAX_ENDS: Final = 32
# So many messages may be gone between a shorter form and the next message.
_MOST_SKIPPED: Final = 16
# A client may put a note such as "12 messages skipped" in place of what it drops.
_MAX_NOTE_BYTES: Final = 300
# In place of a result it may put a note with a preview; ToolOutputTrimmer of openai-agents shows 200
# characters.
_MAX_PREVIEW_BYTES: Final = 600
# A clock in the opening changes its size by a few bytes.
_MAX_OPENING_CHANGE_BYTES: Final = 64
# A part of an id. Mistral draws nine characters, others more.
_DRAWN: Final = re.compile(r"[A-Za-z0-9]{9,}+")
# A link in hex, and as much as is stored of a fingerprint.
_LINK_CHARS: Final = 64
_HEX_CHARS: Final = 24
# Each part of `Message.split`.
_HASH_BYTES: Final = 32
# Of a hash that does not have to tell everything apart.
_SHAPE_CHARS: Final = 16


class HistorySource(NamedTuple):
    """Where a request comes from and goes: requests that differ in it never share a history."""

    # Of upstream, session, model and tools.
    digest: bytes
    # Whether the client names its session.
    is_named: bool
    # Whether no other process can know of another history that ended alike. Otherwise only a complete proof
    # counts, and only if the ids of all calls are such that no other history has them: two histories that
    # differ in one result are equal once it is cleared.
    is_proof: bool = True


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
    # The newest messages: the beginnings of their fingerprints in hex, joined; sizes in bytes; see
    # _describe_shape.
    fingerprints: str
    sizes: tuple[int, ...]
    shapes: tuple[str, ...]
    # The chain in hex, joined, from the first of them on that it is known for, to the end.
    links: str
    # Of the same messages `Message.split` in hex, whole: short hashes could take one result for another.
    # Empty if there are older messages.
    splits: tuple[str, ...] = ()
    # There are older messages.
    is_cut: bool = False
    # Different histories end with the messages of the key, and cannot be told apart.
    is_crowded: bool = False
    # What the request was sent with: the keys of its pivot and of its batches.
    pivot: str | None = None
    batches: tuple[str, ...] = ()

    @property
    def chain(self) -> str:
        """The chain over the whole history, in hex."""
        return self.links[-_LINK_CHARS:]

    @property
    def known(self) -> int:
        """How many of the newest messages the chain is known for."""
        return len(self.links) // _LINK_CHARS - 1


def find_ends(
    owner_root: bytes, source: HistorySource, messages: Sequence[Message]
) -> Iterator[tuple[int, str]]:
    """Where an earlier request may have ended, the last place first, and the key of its record.

    That is before each reply, and not at the end: another history may come to where this one is, and only a
    request that continues one of its own tells them apart. owner_root: the chain's first link.
    """
    found = 0
    for end in range(len(messages) - 1, _PROOF_MESSAGES - 1, -1):
        if messages[end].role == "assistant" != messages[end - 1].role:
            yield end, _make_key(owner_root, source, messages[end - _PROOF_MESSAGES : end])
            found += 1
            if found == _MAX_ENDS:
                return


def find_end_key(source: HistorySource, conversation: Conversation) -> str | None:
    """The key of the record of a request; None if it is too short."""
    newest = conversation.messages[-_PROOF_MESSAGES:]
    if len(newest) < _PROOF_MESSAGES or GONE in newest:
        return None
    return _make_key(conversation.chain[0], source, newest)


def make_history_end(
    owner: str, key: str, conversation: Conversation, most_links: int | None = None
) -> HistoryEnd:
    """The record of a request. most_links: for how many messages it holds the chain at most; None for all."""
    messages, chain, length = conversation.messages, conversation.chain, len(conversation.messages)
    kept = messages[max(length - _MOST_MESSAGES, 0) :]
    known = min(len(kept), most_links or length, length - conversation.known_from)
    opening = messages[: conversation.opening_end]
    return HistoryEnd(
        owner=owner,
        key=key,
        length=length,
        opening=_join(opening) if len(opening) <= _MAX_OPENING else "",
        fingerprints=_join(kept),
        sizes=tuple([message.size_bytes for message in kept]),
        shapes=tuple(map(_describe_shape, kept)),
        splits=tuple([message.split.hex() for message in kept]) if length == len(kept) else (),
        links=b"".join(chain[length - known :]).hex(),
        is_cut=length > len(kept),
    )


@lru_cache(maxsize=64)
def find_placeholders(placeholder: str) -> frozenset[bytes]:
    """The fingerprints of results that are only a placeholder: a known one, or the policy's."""
    return frozenset(fingerprint_result(text) for text in (*PLACEHOLDERS, placeholder) if text)


def continue_history(
    known: HistoryEnd,
    received: Conversation,
    end: int,
    source: HistorySource,
    placeholders: Collection[bytes] = (),
) -> Conversation | None:
    """The received conversation as the continuation of a recorded history; None without proof.

    end: where the recorded request ended, among the received messages. placeholders: the fingerprints of
    results that stand for a cleared one.
    """
    if known.is_crowded or any(message.is_opaque for message in received.messages):
        return None
    fingerprints = _split(known.fingerprints, _HEX_CHARS)
    if not source.is_proof and not _has_own_ids(received.messages[:end]):
        return None
    if _is_complete(known, fingerprints, received.messages[:end], placeholders):
        opening_end = received.opening_end
        return _make_trimmed(known, received, end, _Aligned(opening_end, range(end), opening_end))
    aligned = _find_rest(known, fingerprints, received, end, source) if source.is_proof else None
    return _make_trimmed(known, received, end, aligned) if aligned is not None else None


# Complete


def _has_own_ids(messages: Iterable[Message]) -> bool:
    """Whether each result answers a call whose id a provider has drawn, as most do: with digits and letters.
    Some count instead: `call_1`, `functions.read:12`.
    """
    names = (name for message in messages for name in message.results)
    return all(any(not (part.isdigit() or part.isalpha()) for part in _DRAWN.findall(name)) for name in names)


def _is_complete(
    known: HistoryEnd,
    fingerprints: Sequence[str],
    messages: Sequence[Message],
    placeholders: Collection[bytes],
) -> bool:
    """Whether each message is the recorded one, but for results that are now exactly a placeholder."""
    if known.is_cut or not len(messages) == known.length == len(fingerprints):
        return False
    return all(
        _name(message) == fingerprint
        or (at < len(known.splits) and _is_cleared(known.splits[at], message.split, placeholders))
        for at, (message, fingerprint) in enumerate(zip(messages, fingerprints, strict=True))
    )


def _is_cleared(before: str, now: bytes, placeholders: Collection[bytes]) -> bool:
    """Both as `Message.split`: whether no more has changed than that results are gone."""
    old = bytes.fromhex(before)
    if not old or len(old) != len(now) or old[:_HASH_BYTES] != now[:_HASH_BYTES]:
        return False
    places = (slice(at, at + _HASH_BYTES) for at in range(_HASH_BYTES, len(old), _HASH_BYTES))
    return all(now[place] == old[place] or now[place] in placeholders for place in places)


# Partial


def _find_rest(
    known: HistoryEnd, fingerprints: Sequence[str], received: Conversation, end: int, source: HistorySource
) -> "_Aligned | None":
    # How many messages at the end of both are the same.
    pairs = zip(reversed(fingerprints), reversed(received.messages[:end]), strict=False)
    run = sum(1 for _ in takewhile(lambda pair: pair[0] == _name(pair[1]), pairs))
    different = {message.fingerprint: message.size_bytes for message in received.messages[end - run : end]}
    if len(different) < _PROOF_MESSAGES or sum(different.values()) < _PROOF_BYTES:
        return None
    is_cut_run = known.is_cut and run == len(fingerprints)
    aligned = _align(known, fingerprints, received, end, is_cut_run=is_cut_run)
    if aligned is None or source.is_named or _is_rest(known, fingerprints, received, aligned, end):
        return aligned
    return None


class _Aligned(NamedTuple):
    """Where the received messages before the end stand in the history."""

    # The messages of the opening, and the positions of them and of all others.
    opening_end: int
    positions: Sequence[int]
    # The position of the first other one that was found in the record.
    found_from: int


def _align(
    known: HistoryEnd, fingerprints: Sequence[str], received: Conversation, end: int, *, is_cut_run: bool
) -> _Aligned | None:
    """Finds each message in the record, from the end on; None if one speaks against the match.

    It may be the message itself, a shorter form of it, or a note right behind the opening. Shorter forms must
    not outnumber the messages themselves, and the first message is none unless it is a result: it may be the
    task of another conversation. An opening of about the same size in place of the recorded one stays if
    nothing was dropped behind it. is_cut_run: the run holds the whole record, which has no older messages.
    """
    messages, oldest = received.messages, known.length - len(fingerprints)
    opening = _split(known.opening, _HEX_CHARS)
    start = len(opening) if _begins_with(messages[:end], opening) else 0
    places: dict[str, list[int]] = {}
    for place, fingerprint in enumerate(fingerprints):
        places.setdefault(fingerprint, []).append(place)
    positions: list[int] = []
    at = found = len(fingerprints)
    spare = 0
    for index in range(end - 1, start - 1, -1):
        message = messages[index]
        same = places.get(_name(message), ())
        if earlier := bisect_left(same, at):
            at = found = same[earlier - 1]
            spare += 1
        elif at and index == start > 0 and message.role == "user" and message.size_bytes <= _MAX_NOTE_BYTES:
            at -= 1
        elif (
            spare
            and (index or message.results)
            and (longer := _find_longer_form(known, at, message, is_whole=end == known.length)) is not None
        ):
            at = found = longer
            spare -= 1
        else:
            left, placed = index + 1, [*reversed(positions)]
            if is_cut_run and not at:
                return _place_older(received, start, left, oldest, placed)
            if not start and left == at and _has_other_opening(known, received, left, end):
                opening_end = received.opening_end
                return _Aligned(opening_end, [*range(left), *placed], max(placed[0], opening_end))
            return None
        positions.append(oldest + at)
    return _Aligned(start, [*range(start), *reversed(positions)], oldest + found)


def _is_rest(
    known: HistoryEnd, fingerprints: Sequence[str], received: Conversation, aligned: _Aligned, end: int
) -> bool:
    """Whether more than an application says to everyone is the same, and the request begins as the history
    began, or holds most of what was left of that. One that begins in another way has an opening of its own.
    """
    recorded = set(fingerprints)
    rest = received.messages[aligned.opening_end : end]
    same = {message.fingerprint: message.size_bytes for message in rest if _name(message) in recorded}
    if sum(same.values()) < _UNNAMED_PROOF_BYTES + _FRAME_BYTES * len(same):
        return False
    if aligned.opening_end:
        return bool(known.opening) and _begins_with(received.messages, _split(known.opening, _HEX_CHARS))
    return sum(message.size_bytes for message in rest) >= _UNNAMED_SHARE * sum(known.sizes)


def _place_older(
    received: Conversation, start: int, left: int, oldest: int, positions: Sequence[int]
) -> _Aligned | None:
    """If the first `left` messages are older than the record, before which so many stood in the history."""
    if not start and left == oldest:
        return _Aligned(min(left, received.opening_end), [*range(left), *positions], oldest)
    if left > oldest:
        return None
    older = range(oldest - left + start, oldest)
    return _Aligned(start, [*range(start), *older, *positions], oldest)


def _has_other_opening(known: HistoryEnd, received: Conversation, left: int, end: int) -> bool:
    """Whether the first `left` messages may be the recorded opening as it is now, with all others behind."""
    if known.is_cut or end != known.length or left > received.opening_end:
        return False
    now_bytes = sum(message.size_bytes for message in received.messages[:left])
    return abs(now_bytes - sum(known.sizes[:left])) <= _MAX_OPENING_CHANGE_BYTES


def _find_longer_form(known: HistoryEnd, end: int, message: Message, *, is_whole: bool) -> int | None:
    """The last message shortly before `end` of which this one may be a shorter form, maybe without its calls.

    Both begin alike, or are results of the same calls, with a note in place of what was said. If it is a form
    of an earlier one, it is taken for newer than it is, and rather stays than goes. is_whole: no message is
    gone. Then another text in place of a result is an edit, and no note.
    """
    if message.calls:
        return None
    is_note = message.size_bytes <= _MAX_PREVIEW_BYTES and bool(message.results) and all(message.results)
    is_note = is_note and not is_whole
    if not (is_note or message.beginning):
        return None
    shape = _describe_shape(message)
    kind = shape.partition(":")[0] + ":"
    for at in range(end - 1, max(end - _MOST_SKIPPED, 0) - 1, -1):
        longer = known.shapes[at]
        is_form = longer.startswith(kind) if is_note else longer == shape
        if is_form and message.size_bytes < known.sizes[at]:
            return at
    return None


def _begins_with(messages: Sequence[Message], opening: Sequence[str]) -> bool:
    return [_name(message) for message in messages[: len(opening)]] == opening


def _make_trimmed(
    known: HistoryEnd, received: Conversation, end: int, aligned: _Aligned
) -> Conversation | None:
    """end: where the recorded request ended. None if the chain of what was found is not known."""
    added = received.messages[end:]
    positions = (*aligned.positions, *range(known.length, known.length + len(added)))
    known_from = max(aligned.found_from, known.length - known.known)
    if known_from < aligned.opening_end:
        return None
    messages = [GONE] * (known.length + len(added))
    for position, message in zip(positions, received.messages, strict=True):
        messages[position] = message
    recorded = _split(known.links, _LINK_CHARS)[known_from - known.length - 1 :]
    links = [bytes.fromhex(link) for link in recorded]
    links += accumulate(added, add_link, initial=links.pop())
    # What stands before has links that no other conversation has.
    unknown = [hashlib.sha256(b"trimmed:" + received.key).digest()] * (known_from - 1)
    return Conversation(
        received.leading,
        messages,
        [received.chain[0], *unknown, *links] if known_from else links,
        aligned.opening_end,
        merge_spans(_make_spans(received, positions)),
        Trim(positions, known_from),
    )


def _make_spans(received: Conversation, positions: Sequence[int]) -> list[Span]:
    """The spans in the history. A result may now stand apart from its call, if the same call came again."""
    messages = received.messages
    spans = [Span(positions[span.start], positions[span.end]) for span in received.spans]
    spans += [
        Span(before, after)
        for at, (before, after) in enumerate(pairwise(positions), 1)
        if after - before > 1 and messages[at].results
    ]
    return sorted(spans, key=lambda span: span.end)


def _make_key(owner_root: bytes, source: HistorySource, messages: Sequence[Message]) -> str:
    state = hashlib.sha256(b"end:" + owner_root + source.digest)
    for message in messages:
        # A result may have been cleared since. The key only finds a record, and proves nothing.
        state.update(message.split[:_HASH_BYTES] or message.fingerprint)
    return state.hexdigest()


def _describe_shape(message: Message) -> str:
    """The first letter of its role, a hash of the calls that it answers, and how it begins."""
    kind = message.role[0]
    if message.results:
        names = "\0".join(message.results).encode("utf-8", "surrogatepass")
        kind += hashlib.sha256(names).hexdigest()[:_SHAPE_CHARS]
    return f"{kind}:{message.beginning.hex()}"


def _join(messages: Sequence[Message]) -> str:
    return "".join(map(_name, messages))


def _name(message: Message) -> str:
    return message.fingerprint[: _HEX_CHARS // 2].hex()


def _split(hashes: str, size: int) -> list[str]:
    return [hashes[at : at + size] for at in range(0, len(hashes), size)]
