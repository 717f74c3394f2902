"""Which paths of an upstream callers may use with the upstream's own key.

A key opens everything that its account holds: files, batches, stored responses of all callers, the
organization itself. So callers reach the endpoints that run a model, and what `allow` in the settings adds.
"""

import re
from fnmatch import translate
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from aiohttp import hdrs

from gateway.settings import UpstreamSettings
from gateway.wire.registry import without_version

# Method and path behind an optional /v1, as in the settings: what runs a model, counts for it or names it,
# and nothing that lists, reads, changes or deletes what a caller stored.
_MODEL_ENDPOINTS: Final = (
    "POST chat/completions",
    "POST completions",
    "POST responses",
    "POST responses/input_tokens",
    "POST responses/compact",
    "POST messages",
    "POST messages/count_tokens",
    "POST embeddings",
    "GET models",
    "GET models/*",
    "POST audio/speech",
    "POST audio/transcriptions",
    "POST audio/translations",
    "POST images/generations",
    "POST images/edits",
    "POST images/variations",
    "POST moderations",
    # vLLM, Text Embeddings Inference, llama.cpp, Jina and Cohere.
    "POST rerank",
    "POST v2/rerank",
    "POST score",
    "POST classify",
    "POST pooling",
    "POST tokenize",
    "POST detokenize",
    "POST infill",
    "POST apply-template",
    "GET props",
    "GET health",
    "GET version",
    # Azure OpenAI.
    "POST deployments/*/chat/completions",
    "POST deployments/*/completions",
    "POST deployments/*/embeddings",
    "POST deployments/*/audio/*",
    "POST deployments/*/images/*",
    # Gemini's own API.
    "GET v1beta/models",
    "GET v1beta/models/*",
    "POST v1beta/models/*",
    # Ollama's own API.
    "POST api/chat",
    "POST api/generate",
    "POST api/embed",
    "POST api/show",
    "GET api/tags",
    "GET api/version",
    # Claude Code and others check that a server is there.
    "GET ",
)
# A stored response by its name: GET, DELETE, and POST to cancel it.
_STORED_RESPONSE: Final = re.compile(r"responses/([^/]+)(?:/cancel|/input_items)?")
_CREATING_ENDPOINTS: Final = frozenset({"responses", "responses/input_tokens", "responses/compact"})
# Bodies posted here may name what is stored.
_NAMING_ENDPOINTS: Final = _CREATING_ENDPOINTS | {"messages", "messages/count_tokens"}
# These methods tell nothing that the others do not tell.
_ASKING: Final = frozenset({hdrs.METH_HEAD, hdrs.METH_OPTIONS})
# A path that an upstream may read in another way than this module: encoded twice, with parameters, and so on.
_AMBIGUOUS: Final = re.compile(r"[%;\\]|//")


def is_allowed(upstream: UpstreamSettings, method: str, target: str) -> bool:
    """Whether callers may send this method to this path. target: path and query, as they came.

    A stored response is allowed here; whose it is, is known elsewhere (`find_stored_response`).
    """
    if upstream.api_key is None:
        return True
    path = _normalize(target)
    if is_granted(upstream, method, path):
        return True
    if _AMBIGUOUS.search(path):
        return False
    if _find_name(path) is not None:
        return True
    methods = ("GET", "POST") if method in _ASKING else (method,)
    return any(_is_listed(_MODEL_ENDPOINTS, f"{each} {path}") for each in methods)


def find_stored_response(upstream: UpstreamSettings, method: str, target: str) -> str | None:
    """The name of the response that a path is about, if only the caller who made it may use it."""
    if upstream.api_key is None:
        return None
    path = _normalize(target)
    return None if is_granted(upstream, method, path) else _find_name(path)


def may_name_responses(upstream: UpstreamSettings, method: str, target: str) -> bool:
    """Whether the body may name stored responses that only the caller who made them may use."""
    if upstream.api_key is None or method != hdrs.METH_POST:
        return False
    return _normalize(target) in _NAMING_ENDPOINTS


def is_granted(upstream: UpstreamSettings, method: str, path: str) -> bool:
    """Whether the settings open this path, behind its /v1, for every caller."""
    return _is_listed(_list_granted(upstream.allow), f"{method} {path}")


def _find_name(path: str) -> str | None:
    found = _STORED_RESPONSE.fullmatch(path)
    return found[1] if found is not None and path not in _CREATING_ENDPOINTS else None


def _normalize(target: str) -> str:
    return unquote(without_version(target.partition("?")[0])).removeprefix("/")


def _is_listed(entries: tuple[str, ...], request: str) -> bool:
    return _compile(entries).fullmatch(request) is not None


@lru_cache
def _compile(entries: tuple[str, ...]) -> re.Pattern[str]:
    """One pattern for `METHOD PATH`; an entry without a method stands for all of them."""
    return re.compile("|".join(map(_translate, entries)) or r"(?!)")


def _translate(entry: str) -> str:
    method, _, path = entry.rpartition(" ")
    return f"{method or '[A-Z]+'} {translate(path)}"


@lru_cache
def _list_granted(allow: tuple[str, ...]) -> tuple[str, ...]:
    """Each entry of the settings also stands for every path below it."""
    entries: list[str] = []
    for entry in allow:
        method, space, path = entry.rpartition(" ")
        path = without_version(path).strip("/")
        entries += [f"{method}{space}{path}", f"{method}{space}{path}/*"]
    return tuple(entries)
