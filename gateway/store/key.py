"""What a key may be: printable ASCII, so that it sorts, prefixes and logs the same everywhere."""


def check_key(key: str) -> None:
    if not (key and key.isascii() and key.isprintable()):
        raise ValueError("a store key is printable ASCII and not empty")


def choose_end(prefix: str) -> str:
    """The first text behind every key that begins with `prefix`."""
    return prefix + "\x7f"
