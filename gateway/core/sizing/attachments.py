"""What does a picture, a recording or a file cost? A flat figure each, whatever its bytes.

Providers count pixels, seconds and pages, which nobody here decodes; base64 is never counted as text. The
answer's usage tells the truth one step later (`weights`).
"""

from typing import Final, Literal

Attachment = Literal["image", "audio", "file"]

ATTACHMENT_TOKENS: Final[dict[Attachment, int]] = {
    # Between OpenAI's 765 for a square at high detail and Anthropic's 1,365 for a screenshot of 1280 x 800.
    "image": 1_000,
    # A minute: OpenAI counts 10 tokens a second, Gemini 32.
    "audio": 1_200,
    # Three pages: Anthropic names 1,500 to 3,000 tokens for one page of a PDF, its text and its picture.
    "file": 6_000,
}
