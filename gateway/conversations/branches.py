"""The conversations seen since the start: the newest body of each branch, and what operators are told of it.

One dictionary finds a branch by each of its places: its id, the link of its newest request, and how the body
of that begins and ends. A branch is weighed, makes room and is forgotten as a whole.
In memory only: the newest turns hold callers' keys, as open requests do.
"""

import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from gateway.bounds.lanes import Lanes
from gateway.conversations import reading
from gateway.conversations.reading import Anchor, NewBody, Received
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.history.conversation import Conversation
from gateway.core.history.head import Head
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.state.memory import Memory, Whose
from gateway.store.keys import make_tag
from gateway.wire.body import UNBOUNDED, BodyBounds
from gateway.wire.format import Format

# Different branches may share a place, such as one system prompt, or one opening. The newest ones stay there.
_MOST_AT_PLACE: Final = 16
# A request continues a branch if it holds the newest request of that, and so many messages more at most.
_NEWEST_LINKS: Final = 64
# A branch and its places. What is beside the turn: a request without what grows with it.
_BRANCH_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 500
_REQUEST_WEIGHT_BYTES: Final = 1_000

# An id; a link; the key of a message; how a body begins. Each is a hash, or names the tenant.
BranchPlace = str | bytes | Anchor


class NewestRequest(msgspec.Struct, frozen=True):
    """The newest answered request with its body, and what was sent instead of it."""

    turn: Turn
    plan: Plan
    # What was recorded of the turn's response.
    head: Head
    seen_seconds: float


class Branch:
    """One branch of a conversation. Its id is a label: others may have it, too."""

    __slots__ = ("id", "link", "newest", "places", "received", "tag")

    def __init__(self, tag: str, conversation_id: str, link: bytes) -> None:
        """tag: of the owner. link: the chain of its newest request."""
        self.tag = tag
        self.id = conversation_id
        self.link = link
        # The newest request as it came, answered or not. New ones are read beside it.
        self.received: Received | None = None
        # It may be older than `received`.
        self.newest: NewestRequest | None = None
        # Where it is found.
        self.places: tuple[BranchPlace, ...] = ()


class Branches:
    def __init__(
        self,
        memory: Memory,
        bodies_bytes: int,
        max_bodies: int,
        bounds: BodyBounds = UNBOUNDED,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """bounds: of the bodies that are read at all."""
        self._memory = memory
        self._places: dict[BranchPlace, tuple[Branch, ...]] = {}
        self._bodies: Lru[Branch, Branch] = memory.shelf(_name_owner, bodies_bytes, self._leave, max_bodies)
        self._bounds = bounds
        self._clock = clock
        # Grows with each reload of the settings.
        self.time = 0

    # Reading. Links alone tell where a request belongs: its body may be read beside that of another branch.

    def read(self, owner: str, wire_format: Format, data: bytes) -> Received:
        """Keeps nothing. Raises Unreadable for a body that is not of the format, BeyondBounds for one that is
        too much.
        """
        return reading.read(self._compare(owner, wire_format, data), self._bounds, self._find_by_last)

    async def read_in(self, lanes: Lanes, owner: str, wire_format: Format, data: bytes) -> Received:
        """The same. Reads in a thread if there is much to read."""
        new = self._compare(owner, wire_format, data)
        if new.is_small:
            return reading.read(new, self._bounds, self._find_by_last)
        return await lanes.run(owner, new.size_bytes, reading.read, new, self._bounds, self._find_by_last)

    def _compare(self, owner: str, wire_format: Format, data: bytes) -> NewBody:
        """Beside the newest body that begins like it, if possible one that ends like it, too: a side call has
        other tools there.
        """
        for anchor in reading.list_anchors(owner, wire_format.name, data):
            found: NewBody | None = None
            for branch in reversed(self._places.get(anchor, ())):
                near = branch.received
                new = reading.compare(near, wire_format, data) if near is not None else None
                if new is not None and new.added is not None:
                    return new
                found = found or new
            if found is not None:
                return found
        return NewBody(owner, wire_format, data)

    def _find_by_last(self, key: bytes) -> Received | None:
        """May be called in a thread: what is at a place is replaced as a whole."""
        found = (branch.received for branch in reversed(self._places.get(key, ())))
        return next((received for received in found if received is not None), None)

    # Requests and their responses

    def keep(self, received: Received, conversation_id: str, purges: int) -> Branch:
        """The branch with this id that the request continues, or a new one, with the request as its newest.

        received: with all its messages. purges: the newest deletion when the request was read; nothing is
        kept of one whose conversation was deleted since.
        """
        conversation, tag = received.conversation, make_tag(received.owner)
        if self._memory.was_purged(purges, tag, conversation_id):
            return Branch(tag, conversation_id, conversation.key)
        branch = self._find_branch(conversation_id, conversation)
        if branch is None:
            branch = Branch(tag, conversation_id, conversation.key)
        branch.received, branch.link = received, conversation.key
        self._move(branch, _list_places(branch))
        self._hold(branch)
        return branch

    def is_taken(self, conversation_id: str, conversation: Conversation) -> bool:
        """Whether the newest branch with this id is another one than that of a conversation."""
        known = self._places.get(conversation_id, ())[-1:]
        return any(branch.link not in conversation.chain for branch in known)

    def was_deleted(self, turn: Turn) -> bool:
        """Whether its conversation was deleted since the request was read. What it holds must not be kept."""
        return self._memory.was_purged(turn.purges, make_tag(turn.owner), turn.conversation_id)

    def answer(self, turn: Turn, plan: Plan, head: Head, time: int) -> None:
        """Called after each response.

        time: `time` when the request began. Of a request that ends after a reload no turn is
        kept: it has their upstream and a credential that may not hold any more.
        """
        branch = turn.branch
        if branch is None or self.was_deleted(turn):
            return
        if turn.on_event is not None:
            # It holds what it has collected of the response.
            turn = replace(turn, on_event=None, note_sent=None)
        branch.newest = NewestRequest(turn, plan, head, self._clock()) if time == self.time else None
        if not branch.places:
            # It had to make room meanwhile.
            self._move(branch, _list_places(branch))
        self._hold(branch)

    def _find_branch(self, conversation_id: str, conversation: Conversation) -> Branch | None:
        for link in reversed(conversation.chain[-_NEWEST_LINKS:]):
            for branch in reversed(self._places.get(link, ())):
                if branch.id == conversation_id:
                    return branch
        return None

    # For operators

    def find_newest(self, conversation_id: str) -> NewestRequest | None:
        """None if the body is too large to keep, or had to make room for others."""
        found = (branch.newest for branch in reversed(self._places.get(conversation_id, ())))
        return next((newest for newest in found if newest is not None), None)

    def forget_turns(self) -> None:
        """Their settings and credentials do not hold any more. What was received stays."""
        self.time += 1
        for branch in self._bodies.values():
            branch.newest = None
            self._hold(branch)

    # Where a branch is found, and how it makes room

    def _hold(self, branch: Branch) -> None:
        """As the most recently used one."""
        for gone in self._bodies.put(branch, branch, _weigh(branch)):
            self._leave(gone)

    def _leave(self, branch: Branch) -> None:
        """It is found no more, and nothing is left of it. A request that holds it may bring it back."""
        branch.received, branch.newest = None, None
        self._move(branch, ())

    def _move(self, branch: Branch, places: tuple[BranchPlace, ...]) -> None:
        """From the places where it is found to others, as the newest one there."""
        for place in branch.places:
            if place not in places:
                self._take_from(place, branch)
        crowded_out: list[Branch] = []
        for place in places:
            found = self._places.get(place, ())
            if found[-1:] != (branch,):
                others = [each for each in found if each is not branch]
                self._places[place] = (*others[1 - _MOST_AT_PLACE :], branch)
                if place == branch.id:
                    crowded_out += others[: 1 - _MOST_AT_PLACE]
        branch.places = places
        # With the id of many newer ones: a client that trims has a new branch with each request.
        for old in crowded_out:
            self._bodies.pop(old)
            self._leave(old)

    def _take_from(self, place: BranchPlace, branch: Branch) -> None:
        left = tuple([each for each in self._places.get(place, ()) if each is not branch])
        if left:
            self._places[place] = left
        else:
            self._places.pop(place, None)


def _name_owner(branch: Branch) -> Iterable[Whose]:
    return (Whose(branch.tag, branch.id),)


def _list_places(branch: Branch) -> tuple[BranchPlace, ...]:
    """The id and the link for good, those of the body as long as it has one."""
    received = branch.received
    if received is None:
        return branch.id, branch.link
    messages, anchor = received.conversation.messages, reading.find_anchor(received)
    last = () if not messages else (messages[-1].key,)
    return (branch.id, branch.link, *last) if anchor is None else (branch.id, branch.link, *last, anchor)


def _weigh(branch: Branch) -> int:
    """A request under way has a body beside that of the one that was answered."""
    received, newest, weight = branch.received, branch.newest, _BRANCH_WEIGHT_BYTES
    if newest is not None:
        weight += newest.turn.weight_bytes
    if received is not None and (newest is None or newest.turn.received.body is not received.body):
        weight += _REQUEST_WEIGHT_BYTES + len(received.body.data) + received.facts_bytes
    return weight
