"""What a picture, a recording or a file costs: a fixed number of tokens each, whatever its size in bytes.

Providers count pixels, seconds and pages, which the gateway does not decode; base64 is never counted as text.
The usage of the next response shows the true cost (`calibrated_sizes`).
"""

from typing import Final, Literal

Attachment = Literal["image", "audio", "file"]

ATTACHMENT_TOKENS: Final[dict[Attachment, int]] = {
    # OpenAI counts 765 for a square in high detail, Anthropic 1,365 for a screenshot of 1280 x 800.
    "image": 1_000,
    # One minute: OpenAI counts 10 tokens per second, Gemini 32.
    "audio": 1_200,
    # Three pages: Anthropic states 1,500 to 3,000 tokens for a page of a PDF, text and picture together.
    "file": 6_000,
}
