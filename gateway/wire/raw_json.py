"""Texts with halves of surrogate pairs, which models send when a piece of text ends inside an emoji."""

import json

import msgspec


def encode_json(value: object) -> bytes:
    """Halves of surrogate pairs are escaped."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def join_halves(text: str) -> str:
    """Two halves that follow each other become their character; a single one is replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
