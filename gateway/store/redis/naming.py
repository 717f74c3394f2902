"""What keys are called on the server. All names begin with a prefix and the version of the records.

The layout of the records of another version is another one, so its records are never read or overwritten.
"""

from dataclasses import dataclass
from typing import Final

from gateway.store.keys import find_tag, make_key
from gateway.store.redis.address import Address

_VERSION: Final = 1
_LISTS: Final = "list/"


@dataclass(frozen=True)
class Listed:
    """A record that `scan` finds: its list, on the server, and its place in the list."""

    list_name: str
    member: str


@dataclass(frozen=True)
class Naming:
    """root: before each key."""

    root: str
    # Subscriptions know no databases, so the channel names it.
    channel: str
    epoch: str

    def name(self, key: str) -> str:
        return self.root + key

    def find_key(self, name: str) -> str:
        return name.removeprefix(self.root)

    def is_record(self, name: str) -> bool:
        """Not a list, a lease or their counter."""
        kind = self.find_key(name).partition(":")[0]
        return not kind.startswith(_LISTS) and f"/{_LISTS}" not in kind and kind not in ("lease", "fence")

    def find_list(self, key: str) -> Listed | None:
        """A name of several parts, as in `kind:{tag}first:second`, is in the list of its first part."""
        tag = find_tag(key)
        head, brace, rest = key.partition("}")
        first, colon, second = rest.partition(":")
        if tag is None or not colon:
            return None
        return Listed(self._list_name(f"{head}{brace}{first}:"), second)

    def find_list_of(self, prefix: str) -> str | None:
        """The list that holds exactly what begins with this prefix, if there is one."""
        _, brace, rest = prefix.partition("}")
        is_whole = bool(brace) and rest.find(":") == len(rest) - 1 and rest != ""
        return self._list_name(prefix) if is_whole and find_tag(prefix) is not None else None

    def make_fence(self, key: str) -> str:
        """Of the counter from which every lease of the key's tag gets its number."""
        return self.name(make_key(find_tag(key) or "", "fence", ""))

    def make_tag_pattern(self, tag: str) -> str:
        """Of all names of a tag, whatever they are for."""
        return f"{self.root}*{{{tag}}}*"

    def _list_name(self, prefix: str) -> str:
        return f"{self.root}{_LISTS}{prefix}"


def make_naming(address: Address, bounded: str | None = None) -> Naming:
    """bounded: the name of a bounded store, whose records are apart from all others."""
    base = f"{address.prefix}{_VERSION}:"
    root = base if bounded is None else f"{base}{bounded}/"
    return Naming(root=root, channel=f"{base}news:{address.database}", epoch=f"{base}epoch")
