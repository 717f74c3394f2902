"""The programs that are tried: the settings that README shows for each, and its command line.

In arguments, variables and settings files `{base_url}`, `{root_url}` and `{home}` stand for those of a run.
"""

import json
from collections.abc import Callable, Mapping, Sequence

from tests.agents.client import (
    KEY,
    MODEL,
    Api,
    Client,
    Command,
    Commands,
    Place,
    Sends,
    copy_program,
    npm_program,
    python_program,
    run_in_node,
    run_in_venv,
)
from tests.agents.errand import REPORT
from tests.toy.validity import Rules

_OPENCODE = npm_program("opencode-linux-x64/bin/opencode")
_QWEN = npm_program(".bin/qwen")
_PI = npm_program(".bin/pi")
_CONTINUE = npm_program(".bin/cn")
_CLINE = npm_program("@cline/cli-linux-x64/bin/cline")
_AIDER = python_program("aider", "aider")
_MINI = python_program("mini_swe_agent", "mini")
_GPTME = python_program("gptme", "gptme")
_CODEX = npm_program(".bin/codex")
_CLAUDE = npm_program("@anthropic-ai/claude-code-linux-x64/claude")
# With a model that it does not know Claude Code writes system messages into the history, a beta of 2026.
_CLAUDE_MODEL = "claude-sonnet-4-5"

# Limits far above the window: it never compacts by itself.
_OPENCODE_SETTINGS = {
    "$schema": "https://opencode.ai/config.json",
    "autoupdate": False,
    "share": "disabled",
    "model": f"gateway/{MODEL}",
    "permission": {"edit": "allow", "bash": "allow", "webfetch": "allow"},
    "provider": {
        "gateway": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Gateway",
            "options": {"baseURL": "{base_url}", "apiKey": KEY},
            "models": {
                MODEL: {"name": MODEL, "limit": {"context": 128_000, "output": 8_192}, "tool_call": True}
            },
        }
    },
}
_PI_PROVIDER = {
    "baseUrl": "{base_url}",
    "api": "openai-completions",
    "apiKey": KEY,
    "models": [{"id": MODEL, "contextWindow": 1_000_000, "maxTokens": 8_192}],
}
# A length far above the window, so that it never prunes.
_CONTINUE_SETTINGS = f"""\
name: Gateway
version: 1.0.0
schema: v1
models:
  - name: {MODEL}
    provider: openai
    model: {MODEL}
    apiBase: {{base_url}}
    apiKey: {KEY}
    roles: [chat]
    capabilities: [tool_use]
    defaultCompletionOptions:
      contextLength: 1000000
      maxTokens: 8192
"""
_CODEX_SETTINGS = f"""\
model = "{MODEL}"
model_provider = "gateway"
model_context_window = 272000

[model_providers.gateway]
name = "Gateway"
base_url = "{{base_url}}"
env_key = "GATEWAY_KEY"
wire_api = "responses"
"""


def _fill(text: str, place: Place) -> str:
    for name in ("base_url", "root_url", "home"):
        text = text.replace(f"{{{name}}}", str(getattr(place, name)))
    return text


def _command(place: Place, arguments: Sequence[object], environment: Mapping[str, str]) -> Command:
    filled = {name: _fill(value, place) for name, value in environment.items()}
    return Command(arguments=tuple(_fill(str(each), place) for each in arguments), environment=filled)


def _each_turn(
    start: Sequence[object], environment: Mapping[str, str], go_on: Sequence[str], last: Sequence[str] = ()
) -> Commands:
    """One process for each prompt. go_on: from the second on; last: right before the prompt."""

    def commands(place: Place, prompts: Sequence[str]) -> tuple[Command, ...]:
        words = [(*start, *(go_on if turn else ()), *last, prompt) for turn, prompt in enumerate(prompts)]
        return tuple(_command(place, each, environment) for each in words)

    return commands


def _write(**files: str) -> Callable[[Place], None]:
    """home and project: the path of a file there, a line break, and what it holds."""

    def prepare(place: Place) -> None:
        for folder, texts in files.items():
            for text in texts.split("\0"):
                name, _, content = text.partition("\n")
                path = getattr(place, folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(_fill(content, place), "utf-8")

    return prepare


def _ask_cline(place: Place, prompts: Sequence[str]) -> tuple[Command, ...]:
    """`--compaction off` leaves its history to us. One task: with a prompt it goes on with no session."""
    provider = "openai-compatible"
    login = (_CLINE, "auth", provider, "-k", KEY, "-m", MODEL, "-b", "{base_url}")
    start = (_CLINE, "--json", "--compaction", "off", "-P", provider, "-m", MODEL)
    return tuple(_command(place, words, {}) for words in (login, *((*start, prompt) for prompt in prompts)))


def _ask_aider(place: Place, prompts: Sequence[str]) -> tuple[Command, ...]:
    """Its history is left to us. All prompts go to one process, a line each."""
    quiet = ("--yes-always", "--no-show-model-warnings", "--no-check-update", "--no-analytics", "--no-git")
    plain = ("--map-tokens", "0", "--no-fancy-input", "--no-pretty", "--max-chat-history-tokens", "1000000")
    command = _command(place, (_AIDER, "--model", f"openai/{MODEL}", *quiet, *plain, REPORT), _LITELLM)
    return (Command(arguments=command.arguments, environment=command.environment, lines=tuple(prompts)),)


def _ask_mini(place: Place, prompts: Sequence[str]) -> tuple[Command, ...]:
    """One task: it cannot go on with what it has ended."""
    environment = _LITELLM | {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors"}
    task = ("-t", *prompts, "-y", "--exit-immediately", "-l", "0", "-o", "out.json")
    return (_command(place, (_MINI, "-m", f"openai/{MODEL}", *task), environment),)


_LITELLM = {
    "OPENAI_API_BASE": "{base_url}",
    "OPENAI_API_KEY": KEY,
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


def _list_programs() -> list[Client]:
    opencode = Client(
        name="opencode",
        package="opencode-ai",
        version="1.18.33",
        window=24_000,
        program=_OPENCODE,
        commands=_each_turn(
            (_OPENCODE, "run"),
            {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
            ("--continue",),
        ),
        prepare=_write(project=f"opencode.json\n{json.dumps(_OPENCODE_SETTINGS)}"),
    )
    qwen = Client(
        name="Qwen Code",
        package="@qwen-code/qwen-code",
        version="0.24.4",
        window=48_000,
        program=_QWEN,
        commands=_each_turn(
            (_QWEN, "--auth-type", "openai", "--approval-mode", "yolo"),
            {"OPENAI_BASE_URL": "{base_url}", "OPENAI_API_KEY": KEY, "OPENAI_MODEL": MODEL},
            ("--continue",),
            ("-p",),
        ),
    )
    pi = Client(
        name="pi",
        package="@earendil-works/pi-coding-agent",
        version="0.74.2",
        window=16_000,
        program=_PI,
        commands=_each_turn(
            (_PI, "--provider", "gateway", "--model", MODEL), {"PI_OFFLINE": "1"}, ("-c",), ("-p",)
        ),
        prepare=_write(
            home=f".pi/agent/models.json\n{json.dumps({'providers': {'gateway': _PI_PROVIDER}})}\0"
            f".pi/agent/settings.json\n{json.dumps({'compaction': {'enabled': False}})}"
        ),
    )
    continue_cli = Client(
        name="Continue",
        package="@continuedev/cli",
        version="1.5.47",
        window=24_000,
        program=_CONTINUE,
        commands=_each_turn(
            (_CONTINUE, "--config", "{home}/.continue/config.yaml", "--auto"),
            {"CONTINUE_TELEMETRY_ENABLED": "0"},
            ("--resume",),
            ("-p",),
        ),
        prepare=_write(home=f".continue/config.yaml\n{_CONTINUE_SETTINGS}"),
    )
    cline = Client(
        name="Cline",
        package="cline",
        version="3.0.65",
        window=24_000,
        program=_CLINE,
        commands=_ask_cline,
        turns=1,
    )
    aider = Client(
        name="aider",
        package="aider-chat",
        version="0.86.2",
        program=_AIDER,
        commands=_ask_aider,
        has_tools=False,
        turns=42,
    )
    mini = Client(
        name="mini-swe-agent",
        package="mini-swe-agent",
        version="2.4.6",
        program=_MINI,
        commands=_ask_mini,
        turns=1,
        last_command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
    )
    return [opencode, qwen, pi, continue_cli, cline, aider, mini]


def _list_more_programs() -> list[Client]:
    # It takes the window for 128,000 tokens and sends the newest messages that fit. Without the timeout it looks
    # for its token tables on the internet before each count.
    gptme = Client(
        name="gptme",
        package="gptme",
        version="0.35.1",
        window=64_000,
        program=_GPTME,
        commands=_each_turn(
            (
                *(_GPTME, "--non-interactive", "--model", f"local/{MODEL}", "--name", "notes"),
                *("--no-workspace", "--tools", "shell,read", "--tool-format", "tool"),
            ),
            {"OPENAI_BASE_URL": "{base_url}", "OPENAI_API_KEY": KEY, "GPTME_TIKTOKEN_TIMEOUT": "0"},
            ("--resume",),
        ),
        sends="newest",
        rules=Rules(later_system=True),
    )
    codex = Client(
        name="Codex",
        package="@openai/codex",
        version="0.169.0",
        api="responses",
        window=24_000,
        program=_CODEX,
        commands=_each_turn(
            (_CODEX, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
            {"CODEX_HOME": "{home}", "GATEWAY_KEY": KEY},
            ("resume", "--last"),
        ),
        prepare=_write(home=f"config.toml\n{_CODEX_SETTINGS}"),
    )
    claude = Client(
        name="Claude Code",
        package="@anthropic-ai/claude-code",
        version="2.1.329",
        api="messages",
        # It asks for 32,000 tokens of thinking inside 32,000 of reply: a third of the window at most.
        window=110_000,
        program=_CLAUDE,
        commands=_ask_claude,
        model=_CLAUDE_MODEL,
    )
    return [gptme, codex, claude]


def _ask_claude(place: Place, prompts: Sequence[str]) -> tuple[Command, ...]:
    environment = {
        "ANTHROPIC_BASE_URL": "{root_url}",
        "ANTHROPIC_AUTH_TOKEN": KEY,
        "ANTHROPIC_MODEL": _CLAUDE_MODEL,
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
    }
    words = [
        (_CLAUDE, "-p", prompt, "--dangerously-skip-permissions", *(("--continue",) if turn else ()))
        for turn, prompt in enumerate(prompts)
    ]
    return tuple(_command(place, each, environment) for each in words)


# Programs of this repository around a Python SDK: the venv, the package, its version, and the format.
_SDKS: Mapping[str, tuple[str, str, str, Api]] = {
    "openai_agents_agent.py": ("openai_agents", "openai-agents", "0.24.0", "chat"),
    "langchain_agent.py": ("langchain", "langchain", "1.4.7", "chat"),
    "pydantic_ai_agent.py": ("pydantic_ai", "pydantic-ai-slim", "2.68.0", "chat"),
    "openai_loop.py": ("openai_sdk", "openai", "3.54.0", "chat"),
    "smolagents_agent.py": ("smolagents", "smolagents", "1.26.0", "chat"),
    "autogen_agent.py": ("autogen", "autogen-agentchat", "0.7.5", "chat"),
    "anthropic_loop.py": ("anthropic_sdk", "anthropic", "2.12.0", "messages"),
    "anthropic_runner.py": ("anthropic_sdk", "anthropic", "2.12.0", "messages"),
}


def _sdk(name: str, program: str, *arguments: str, sends: Sends = "all", turns: int = 3) -> Client:
    venv, package, version, api = _SDKS[program]
    return Client(
        name=name,
        package=package,
        version=version,
        api="responses" if "responses" in arguments else api,
        program=python_program(venv),
        commands=run_in_venv(venv, program, *arguments),
        sends=sends,
        turns=turns,
    )


def _node(name: str, package: str, version: str, api: Api, arguments: Sequence[str], sends: Sends) -> Client:
    program = "ai_sdk_agent.mjs" if package == "ai" else "anthropic_runner.mjs"
    return Client(
        name=name,
        package=package,
        version=version,
        api=api,
        program=npm_program(package),
        commands=run_in_node(program, *arguments),
        prepare=copy_program(program),
        sends=sends,
    )


def _ai_sdk(api: Api, mode: str) -> Client:
    """The provider's default with Responses refers to the model's items by their ids, which the server holds."""
    sends: Sends = "new" if api == "responses" else "all"
    return _node(f"Vercel AI SDK, {api}, {mode}", "ai", "6.0.326", api, (api, mode), sends)


def _runner(holder: str, mode: str, *, is_node: bool) -> Client:
    """The Anthropic SDK's tool runner. By default it sends only what the server does not hold."""
    sends: Sends = "all" if holder == "unthreaded" else "new"
    if not is_node:
        name = f"anthropic tool_runner, {holder}, {mode}"
        return _sdk(name, "anthropic_runner.py", holder, mode, sends=sends)
    name = f"anthropic toolRunner, {holder}, {mode}"
    return _node(name, "@anthropic-ai/sdk", "1.12.0", "messages", (holder, mode), sends)


_WAYS = ("sync", "async", "stream", "async-stream")
_BOTH = ("plain", "streaming")
_HELD = (("unthreaded", "plain"), ("runner", "plain"), ("runner", "streaming"), ("thread", "plain"))
_OPENAI, _ANTHROPIC, _AGENTS = "openai_loop.py", "anthropic_loop.py", "openai_agents_agent.py"
CLIENTS: tuple[Client, ...] = (
    *_list_programs(),
    *(
        _sdk(f"openai-agents, {api}, {mode}", _AGENTS, api, mode)
        for api in ("chat", "responses")
        for mode in _BOTH
    ),
    # It shortens the old tool outputs in its history.
    _sdk("openai-agents, responses, trimming", _AGENTS, "responses", "trimming", sends="newest", turns=14),
    *(_sdk(f"LangChain + LangGraph, {mode}", "langchain_agent.py", mode) for mode in _BOTH),
    # `trim_messages` keeps no part of a turn whose prompt is too far back.
    _sdk("LangChain + LangGraph, trimming", "langchain_agent.py", "trimming", sends="newest", turns=14),
    _sdk("pydantic-ai", "pydantic_ai_agent.py"),
    *(_ai_sdk(api, mode) for api in ("chat", "responses", "messages") for mode in _BOTH),
    *(_sdk(f"openai SDK, {way}", _OPENAI, way, "all") for way in _WAYS),
    # Two front ends roll a window of their own: the newest 40 messages, and the newest 20 tool results.
    _sdk("openai SDK, newest messages", _OPENAI, "stream", "newest-messages", sends="newest"),
    _sdk("openai SDK, newest results", _OPENAI, "stream", "newest-results", sends="newest"),
    _sdk("smolagents", "smolagents_agent.py", "tools"),
    _sdk("AutoGen, buffered", "autogen_agent.py", sends="newest"),
    *_list_more_programs(),
    *(_sdk(f"anthropic SDK, {way}", _ANTHROPIC, way, "all") for way in _WAYS),
    _sdk("anthropic SDK, newest messages", _ANTHROPIC, "stream", "newest-messages", sends="newest", turns=14),
    *(_runner(*held, is_node=False) for held in _HELD),
    *(_runner(*held, is_node=True) for held in (*_HELD, ("thread", "streaming"))),
)


def find_client(name: str) -> Client:
    return next(client for client in CLIENTS if client.name == name)
