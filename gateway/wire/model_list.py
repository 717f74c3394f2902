"""Parses a `/v1/models` response into limits by model name.

There is no standard for limits in it. Understood are vLLM and SGLang (`max_model_len`), OpenRouter
(`context_length`, `top_provider`), Groq and Vercel (`context_window`), Mistral and LM Studio
(`max_context_length`, `loaded_context_length`), llama.cpp (`meta.n_ctx`), Together (a bare list), DeepInfra
(`metadata`), Copilot and GitHub (`capabilities.limits`, `limits`) and Anthropic (`max_input_tokens`).
`n_ctx_train` is ignored: it is the window of the model's training, not of the server.
"""

from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

import msgspec

from gateway.core.limits.model_limits import Limits, is_plausible

T = TypeVar("T")

MAX_BYTES: Final = 8 << 20
_MAX_MODELS: Final = 20_000
# Each value follows a comma and takes some 64 bytes once it is split off: 64 MB at most.
_MAX_COMMAS: Final = 1_000_000
_LONGEST_NAME: Final = 256
_LONGEST_NUMBER: Final = 32

_CONTEXT: Final = (
    *("max_model_len", "context_length", "context_window", "max_context_length", "loaded_context_length"),
    *("max_context_window_tokens", "max_context_tokens", "context_size", "n_ctx"),
)
_INPUT: Final = ("max_input_tokens", "max_prompt_tokens")
_OUTPUT: Final = ("max_completion_tokens", "max_output_tokens", "max_output_length", "max_tokens")
# Objects in a model's entry that may hold limits. They may be nested.
_SECTIONS: Final = ("top_provider", "meta", "metadata", "capabilities", "limits")
_DEEPEST: Final = 2

_Entry = Mapping[str, msgspec.Raw]
_object_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
# Not strict, because a number may be a string.
_number_decoder: Final = msgspec.json.Decoder(int, strict=False)
_list_decoder: Final = msgspec.json.Decoder(list[msgspec.Raw])
_name_decoder: Final = msgspec.json.Decoder(str)
_Errors: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError)


def parse_model_list(data: bytes) -> dict[str, Limits]:
    """The models with a known limit. Empty for anything that is not a model list; never raises.

    If several entries have the same name (one for each deployment), the smaller numbers count.
    """
    found: dict[str, Limits] = {}
    parents: dict[str, str] = {}
    for name, entry in _find_models(data):
        limits = _find_limits(entry)
        if limits != Limits():
            found[name] = limits.with_caps(found.get(name, Limits()))
        elif parent := _parse_name(entry, "parent"):
            parents[name] = parent
    # vLLM lists an adapter without a window. It runs in the window of its parent.
    adapters = {name: found[parent] for name, parent in parents.items() if parent in found}
    return adapters | found


def list_model_names(data: bytes) -> frozenset[str]:
    """All models, with and without limits. Empty for anything that is not a model list; never raises."""
    return frozenset(name for name, _ in _find_models(data))


def _find_models(data: bytes) -> Iterator[tuple[str, _Entry]]:
    if len(data) > MAX_BYTES or data.count(b",") > _MAX_COMMAS:
        return
    for raw in _split_models(data)[:_MAX_MODELS]:
        entry = _parse(_object_decoder, raw) or {}
        name = _parse_name(entry, "id") or _parse_name(entry, "name")
        if name is not None:
            yield name, entry


def _split_models(data: bytes) -> list[msgspec.Raw]:
    """Under `data`, as in OpenAI's API; under `models` (Cohere, Ollama); or the document itself."""
    outer = _parse(_object_decoder, data)
    if outer is None:
        return _parse(_list_decoder, data) or []
    return _parse(_list_decoder, outer.get("data")) or _parse(_list_decoder, outer.get("models")) or []


def _find_limits(entry: _Entry) -> Limits:
    """The smallest number of each kind. A provider of OpenRouter may offer less than the model has, and LM
    Studio may have loaded the model with less.
    """
    sections = list(_find_sections(entry, _DEEPEST))
    context, prompt = _find_smallest(sections, _CONTEXT), _find_smallest(sections, _INPUT)
    output, window = _find_smallest(sections, _OUTPUT), context or prompt
    # An output as large as the window cannot be reserved. The bundled table has the same rule.
    is_usable = output is not None and (window is None or output < window)
    return Limits(context=context, input=prompt, output=output if is_usable else None)


def _find_sections(entry: _Entry, depth: int) -> Iterator[_Entry]:
    yield entry
    for name in _SECTIONS if depth else ():
        inner = _parse(_object_decoder, entry.get(name))
        if inner is not None:
            yield from _find_sections(inner, depth - 1)


def _find_smallest(sections: list[_Entry], names: tuple[str, ...]) -> int | None:
    claims = (_parse_tokens(section[name]) for section in sections for name in names if name in section)
    return min((claim for claim in claims if claim is not None), default=None)


def _parse_tokens(raw: msgspec.Raw) -> int | None:
    """An integer, an integral float, or either as a string; None for anything else, `true` included."""
    tokens = _parse(_number_decoder, raw) if len(raw) <= _LONGEST_NUMBER else None
    return tokens if tokens is not None and is_plausible(tokens) else None


def _parse_name(entry: _Entry, key: str) -> str | None:
    name = _parse(_name_decoder, entry.get(key)) or ""
    return name if 0 < len(name) <= _LONGEST_NAME else None


def _parse(decoder: msgspec.json.Decoder[T], raw: msgspec.Raw | bytes | None) -> T | None:
    try:
        return decoder.decode(raw) if raw is not None else None
    except _Errors:
        return None
