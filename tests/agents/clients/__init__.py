"""The clients that are tried, one file each: the settings that README shows, and the command line."""

from tests.agents.client import Client
from tests.agents.clients import (
    ai_sdk,
    aider,
    anthropic_sdk,
    claude_code,
    cline,
    codex,
    continue_cli,
    langchain,
    mini_swe_agent,
    openai_agents,
    openai_sdk,
    opencode,
    pi,
    pydantic_ai,
    qwen_code,
)

CLIENTS: tuple[Client, ...] = (
    opencode.CLIENT,
    qwen_code.CLIENT,
    pi.CLIENT,
    continue_cli.CLIENT,
    cline.CLIENT,
    aider.CLIENT,
    mini_swe_agent.CLIENT,
    *openai_agents.CLIENTS,
    *langchain.CLIENTS,
    pydantic_ai.CLIENT,
    *ai_sdk.CLIENTS,
    *openai_sdk.CLIENTS,
    codex.CLIENT,
    claude_code.CLIENT,
    *anthropic_sdk.CLIENTS,
)
