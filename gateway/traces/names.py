"""The names of spans and attributes, and where they come from.

GenAI conventions: github.com/open-telemetry/semantic-conventions-genai (docs/gen-ai/gen-ai-spans.md). They
are not stable yet, so a name changes here only. What they have no name for begins with `gateway.`.
"""

from typing import Final
from urllib.parse import urlsplit

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
CONVERSATION: Final = "gen_ai.conversation.id"
# Only ever true: "SHOULD NOT be set to false".
COMPACTED: Final = "gen_ai.conversation.compacted"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_STREAM: Final = "gen_ai.request.stream"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
FIRST_BYTE_SECONDS: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
# General conventions.
ERROR: Final = "error.type"
STATUS: Final = "http.response.status_code"
METHOD: Final = "http.request.method"
SERVER: Final = "server.address"
SERVER_PORT: Final = "server.port"
# Ours.
FORMAT: Final = "gateway.format"
PLAN: Final = "gateway.plan"
TENANT: Final = "gateway.tenant"
UPSTREAM: Final = "gateway.upstream"
RECEIVED_TOKENS: Final = "gateway.tokens.received"
SENT_TOKENS: Final = "gateway.tokens.sent"
OWN_SECONDS: Final = "gateway.own_seconds"
WAITED_SECONDS: Final = "gateway.waited_seconds"
RECALL_SEARCHES: Final = "gateway.recall.searches"
TRIGGER: Final = "gateway.compaction.trigger"
REASON: Final = "gateway.compaction.reason"
RESULT: Final = "gateway.compaction.result"
COVERS: Final = "gateway.compaction.covers"
CALLS: Final = "gateway.compaction.calls"
RIDING_CALLS: Final = "gateway.compaction.riding_calls"
TOKENS_BEFORE: Final = "gateway.compaction.tokens_before"
TOKENS_AFTER: Final = "gateway.compaction.tokens_after"

CHAT: Final = "chat"
COMPACT: Final = "compact"
# A request that is not followed.
RELAY: Final = "relay"

# By the end of the host's name.
_PROVIDERS: Final = {
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    "openai.azure.com": "azure.ai.openai",
    "services.ai.azure.com": "azure.ai.inference",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "api.mistral.ai": "mistral_ai",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.x.ai": "x_ai",
    "api.perplexity.ai": "perplexity",
    "api.cohere.com": "cohere",
}
# Clients choose the name of a model; this much of it is sent.
_NAME_CHARS: Final = 128


def find_provider(base_url: str, upstream: str) -> str:
    """upstream: its name in the settings, which stands for a provider that the conventions do not know."""
    host = urlsplit(base_url).hostname or ""
    found = (name for ending, name in _PROVIDERS.items() if host == ending or host.endswith(f".{ending}"))
    return next(found, upstream)


def name_chat(model: str) -> str:
    """The name of a span."""
    return f"{CHAT} {shorten(model)}"


def shorten(name: str) -> str:
    return name[:_NAME_CHARS]
