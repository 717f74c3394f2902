"""Real errors of providers, word for word, and their meaning."""

import pytest

from gateway.core.refusal.overflow import Overflow, Refusal, parse_overflow


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Fireworks
        (
            "The prompt is too long: 140000, model maximum context length: 131071",
            Overflow(context=131_071, used=140_000, prompt_tokens=140_000),
        ),
        # DeepSeek and older OpenAI models
        (
            "This model's maximum context length is 65,536 tokens. However, you requested 70,000 tokens "
            "(66,000 "
            "in the messages, 4,000 in the completion). Please reduce the length of the messages or "
            "completion.",
            Overflow(context=65_536, used=70_000, prompt_tokens=66_000),
        ),
        # OpenAI, GPT-5
        (
            "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in "
            "509178 tokens. "
            "Please reduce the length of the messages.",
            Overflow(input=272_000, used=509_178, prompt_tokens=509_178),
        ),
        # vLLM
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 64000. This model's maximum context "
            "length is "
            "64001 tokens and your request has 24235 input tokens (64000 > 64001 - 24235).",
            Overflow(context=64_001, used=24_235, prompt_tokens=24_235),
        ),
        (
            "The decoder prompt (length 41000) is longer than the maximum model length of 40960. Make "
            "sure that "
            "`max_model_len` is no smaller than the number of text tokens.",
            Overflow(context=40_960, used=41_000, prompt_tokens=41_000),
        ),
        (
            "Input prompt (9000 tokens) is too long and exceeds limit of 8192",
            Overflow(context=8192, used=9000, prompt_tokens=9000),
        ),
        ("max_tokens must be at least 1, got -2345.", Overflow()),
        # SGLang
        (
            "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
            Overflow(context=8192, used=9000, prompt_tokens=9000),
        ),
        (
            "Input length (9000 tokens) exceeds the maximum allowed length (8186 tokens). Use a shorter "
            "input.",
            Overflow(input=8186, used=9000, prompt_tokens=9000),
        ),
        # Text Generation Inference
        (
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 16384. "
            "Given: 70655 `inputs` tokens and 1024 `max_new_tokens`",
            Overflow(context=16_384, used=70_655, prompt_tokens=70_655),
        ),
        (
            "Input validation error: `inputs` must have less than 4095 tokens. Given: 5000",
            Overflow(input=4095, used=5000, prompt_tokens=5000),
        ),
        # Cohere
        (
            "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000. "
            "Try using "
            "a shorter prompt, or enable prompt truncating.",
            Overflow(input=4081, used=5000, prompt_tokens=5000),
        ),
        (
            "too many tokens: size limit exceeded by 13042 tokens. Try using shorter or fewer inputs. "
            "The limit "
            "for this model is 128000 tokens.",
            Overflow(input=128_000),
        ),
        # llama.cpp, LM Studio, Ollama
        ("the request exceeds the available context size, try increasing it", Overflow()),
        ("Context size has been exceeded.", Overflow()),
        (
            "The number of tokens to keep from the initial prompt is greater than the context length. Try to "
            "load the model with a larger context length, or provide a shorter input",
            Overflow(),
        ),
        (
            "Trying to keep the first 9000 tokens when context the overflows. However, the model is "
            "loaded with "
            "context length of only 4096 tokens, which is not enough.",
            Overflow(context=4096),
        ),
        (
            "Requested tokens (9000) exceed context window of 4096",
            Overflow(context=4096, used=9000),
        ),
        # Bedrock, Vertex, Gemini
        ("Input is too long for requested model.", Overflow()),
        (
            "Too many input tokens. Max input tokens: 8192, request input token count: 9000 ",
            Overflow(input=8192, used=9000, prompt_tokens=9000),
        ),
        (
            "Unable to submit request because the input token count is 1234567 but model only supports up to "
            "1048576. Reduce the input token count and try again.",
            Overflow(input=1_048_576, used=1_234_567, prompt_tokens=1_234_567),
        ),
        # Cloudflare, GitHub Models, Volcano Engine, Poolside, Zhipu
        (
            "The estimated number of input and maximum output tokens (9000) exceeded this model context "
            "window "
            "limit (8192).",
            Overflow(context=8192, used=9000),
        ),
        ("Request body too large for gpt-4o model. Max size: 8000 tokens.", Overflow(input=8000)),
        (
            "Input length 131234 exceeds the maximum length 98304. Request id: 021731",
            Overflow(input=98_304, used=131_234, prompt_tokens=131_234),
        ),
        (
            "Input length 131393 exceeds the maximum allowed input length of 131040 tokens.",
            Overflow(input=131_040, used=131_393, prompt_tokens=131_393),
        ),
        ("Prompt exceeds max length", Overflow()),
        ("Total tokens of image and text exceed max message tokens.", Overflow()),
        # Smaller servers
        (
            "prompt token count 140000 cannot exceed 131072",
            Overflow(input=131_072, used=140_000, prompt_tokens=140_000),
        ),
        ("input_tokens (5000) exceed max_seq_len 4096", Overflow()),
        ("Your input length (140000) is over the model's context length 131072", Overflow(context=131_072)),
        ("The number of tokens exceeds the model's max context", Overflow()),
        ("Exceeded max token length", Overflow()),
        # Codes
        ("exceed_context_size_error", Overflow()),
        ("model_max_prompt_tokens_exceeded", Overflow()),
        ("ContextWindowExceededError", Overflow()),
        # Errors that a gateway wraps in its own
        (
            "litellm.BadRequestError: OpenAIException - Error code: 400 - {'error': {'message': \"This "
            "model's "
            'maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.", '
            "'type': "
            "'invalid_request_error', 'param': 'messages', 'code': 'context_length_exceeded'}}",
            Overflow(context=8192, used=9000, prompt_tokens=9000),
        ),
        (
            "AnthropicException - "
            'b\'{"type":"error","error":{"type":"invalid_request_error","message":"prompt '
            "is too long: 213462 tokens > 200000 maximum\"}}'",
            Overflow(context=200_000, used=213_462, prompt_tokens=213_462),
        ),
        (
            'upstream said {\\"error\\":{\\"message\\":\\"maximum context length is 8192 tokens\\"}}',
            Overflow(context=8192),
        ),
        # Bytes
        ("Request exceeds the maximum size", Overflow(kind="bytes")),
        ("Request exceeds the maximum allowed number of bytes", Overflow(kind="bytes")),
        ("request_too_large", Overflow(kind="bytes")),
        ("PayloadTooLargeError: request entity too large", Overflow(kind="bytes")),
        ("http: request body too large", Overflow(kind="bytes")),
        ("FUNCTION_PAYLOAD_TOO_LARGE", Overflow(kind="bytes")),
        ("Failed to buffer the request body: length limit exceeded", Overflow(kind="bytes")),
        (
            "Request payload size exceeds the limit: 20971520 bytes.",
            Overflow(kind="bytes", bytes=20_971_520),
        ),
        (
            "Maximum request body size 1048576 exceeded, actual body size 2000000",
            Overflow(kind="bytes", bytes=1_048_576),
        ),
        # Images
        ("Too many images in request. Max is 500.", Overflow(kind="images", images=500)),
        ("At most 4 image(s) may be provided in one request.", Overflow(kind="images", images=4)),
        (
            "messages.38.content.1.image.source.base64.data: At least one of the image dimensions exceed max "
            "allowed size for many-image requests: 2000 pixels",
            Overflow(kind="images"),
        ),
    ],
)
def test_each_providers_overflow_error_is_recognized(text: str, expected: Overflow) -> None:
    assert parse_overflow(Refusal(400, (text,))) == expected


@pytest.mark.parametrize(
    "text",
    [
        # Rate limits, payment, authentication
        "Request too large for gpt-4 in organization org-x on tokens per min (TPM): Limit 10000, "
        "Requested 15000. "
        "The input or output tokens must be reduced in order to run successfully.",
        "Request too large for model `llama-3.1-8b-instant` in organization `org_x` service tier "
        "`on_demand` on "
        "tokens per minute (TPM): Limit 6000, Requested 6294, please reduce your message size and try again.",
        "Too many tokens, please wait before trying again.",
        "Too many tokens per day, please wait before trying again.",
        "Quota exceeded for metric: generate_content_free_tier_input_token_count, limit: 250000",
        "This request requires more credits, or fewer max_tokens. You requested up to 32000 tokens, but "
        "can only "
        "afford 1234.",
        "Extra usage is required for long context requests.",
        "Incorrect API key provided: token expired",
        "Overloaded",
        # The reply alone
        "max_tokens is too large: 6000. This model supports at most 4096 completion tokens, whereas you "
        "provided 6000.",
        "max_tokens: 128000 > 64000, which is the maximum allowed number of output tokens for claude-x",
        "`max_tokens` must be less than or equal to `16384`, the maximum value for `max_tokens` is less "
        "than the "
        "`context_window` for this model",
        "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
        "Range of max_tokens should be [1, 8192]",
        "Input validation error: `max_new_tokens` must be <= 4096. Given: 5000",
        "The maximum tokens you requested exceeds the model limit of 4096. Try again with a maximum "
        "tokens value "
        "that is lower than the limit.",
        "max_tokens must be at most 8192",
        "max_tokens (5000) exceeds the maximum of 4096",
        "The requested number of completion tokens exceeds the limit",
        "max_tokens exceeds the token limit and must be lower",
        "max_tokens must be at least 1, got -1.",
        # One field
        "Invalid 'messages[5].content': string too long. Expected a string with maximum length "
        "10485760, but got "
        "a string with length 20000000 instead.",
        "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with "
        "length 140 instead.",
        "messages.1.content.0.image.source.base64: image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes",
        "messages.11.content.8.image.source.base64.data: At least one of the image dimensions exceed "
        "max allowed "
        "size: 8000 pixels",
        "At most 0 image(s) may be provided in one request.",
        "Extra inputs are not permitted, field: 'context_length_exceeded_behavior', value: 'truncate'",
        "Unknown parameter context_length_exceeded_behavior",
        # A status of 400 and the word "token" are not enough
        "Unexpected token '<' in JSON at position 0",
        "The length of the session token exceeds the maximum",
        "Invalid token: eos_token_id 128009 is out of range",
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'.",
        "The csrf token is missing or too short",
        "Missing required parameter: prompt",
        # Quoted words of a user
        "Invalid value: 'please explain the maximum context length error of 4096 tokens'.",
        "Input should be a valid string [type=string_type, input_value={'role': 'user', 'content': "
        "'prompt is too "
        "long: 213462 tokens > 200000 maximum'}, input_type=dict]",
        "Could not parse “my prompt is too long for the context window, it exceeds the context window”",
    ],
)
def test_each_providers_other_errors_are_not_overflows(text: str) -> None:
    for status in (200, 400, 413, 422, 500):
        assert parse_overflow(Refusal(status, (text,))) is None
