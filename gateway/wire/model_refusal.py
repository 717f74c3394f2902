"""Does an error answer say that a model is not to be had?"""

from typing import Final

from gateway.wire.refusal import read_refusal

# Gateways and clouds say it with any of these.
STATUSES: Final = frozenset({400, 403, 404, 422})
_CODES: Final = frozenset({"model_not_found", "model_not_available", "invalid_model"})
_PHRASES: Final = (
    *("not found", "not exist", "not a valid", "invalid model", "unknown model", "no such model"),
    *("not supported", "unsupported", "not available", "unavailable", "access"),
)


def is_model_unknown(status: int, body: bytes, model: str) -> bool:
    """Any 404; otherwise a code that says so, or a text that names the model and what is wrong with it.

    Never raises. Where it is wrong, another model is asked the same.
    """
    if status not in STATUSES:
        return False
    refusal = read_refusal(status, body)
    texts = [text.lower() for text in refusal.texts] if refusal is not None else []
    if status == 404 or _CODES.intersection(texts):
        return True
    return any(model.lower() in text and any(phrase in text for phrase in _PHRASES) for text in texts)
