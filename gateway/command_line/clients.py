"""How commands are pointed at a gateway: one row for each client that `refold run` knows.

In variables and arguments `{root}` stands for the gateway's address. Nothing of the user is written.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import yaml

Env = Mapping[str, str]
_OPENAI: Final = "{root}/v1"
# Strings stay; comments and commas before a closing bracket go.
_NO_JSON: Final = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/|,(?=\s*[}\]])', re.DOTALL)
_FROM_ENV: Final = re.compile(r"\{env:(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class OwnSettings:
    """What the files of a client say. values: as if they were variables. sets, arguments: what only they tell
    how to name.
    """

    values: Env = field(default_factory=dict)
    sets: Env = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


def _read_nothing(_: Env, __: Sequence[str]) -> OwnSettings:
    return OwnSettings()


@dataclass(frozen=True, kw_only=True)
class KnownClient:
    """reads: variables whose value was the address of the API; by them the upstream that it becomes:
    `default`, `anthropic`, or `all` for one of every format. sets: variables. read_own: its files.
    """

    names: tuple[str, ...]
    reads: Env
    sets: Env = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    read_own: Callable[[Env, Sequence[str]], OwnSettings] = _read_nothing


def find_client(program: str) -> KnownClient:
    """By the name of the program's file. The last row fits everything."""
    name = Path(program).stem
    return next((client for client in CLIENTS if name in client.names), CLIENTS[-1])


def _read_claude(env: Env, _: Sequence[str]) -> OwnSettings:
    """Its settings go before the environment, and `--settings` before these."""
    values: dict[str, str] = {}
    for path in (_home(env, ".claude/settings.json"), *map(Path, _CLAUDE_FILES)):
        values |= _texts(_read_json(path).get("env"))
    if "ANTHROPIC_BASE_URL" not in values:
        return OwnSettings()
    setting = json.dumps({"env": {"ANTHROPIC_BASE_URL": "{root}"}})
    return OwnSettings(values=values, arguments=("--settings", setting))


def _read_codex(env: Env, _: Sequence[str]) -> OwnSettings:
    """It reads no variable. The provider in use has the address, or a setting for the built-in one."""
    path = (
        Path(env["CODEX_HOME"], "config.toml") if env.get("CODEX_HOME") else _home(env, ".codex/config.toml")
    )
    settings: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        settings = tomllib.loads(path.read_text("utf-8"))
    profile = _section(_section(settings, "profiles"), str(settings.get("profile")))
    provider = str(profile.get("model_provider") or settings.get("model_provider") or "openai")
    own = _section(_section(settings, "model_providers"), provider)
    key = f"model_providers.{provider}.base_url" if own else "openai_base_url"
    values = _texts({"base_url": own.get("base_url") if own else settings.get("openai_base_url")})
    return OwnSettings(values=values, arguments=("-c", f'{key}="{_OPENAI}"'))


def _read_opencode(env: Env, arguments: Sequence[str]) -> OwnSettings:
    """The provider of the model in use, or the two that it knows without settings."""
    urls: dict[str, str] = {}
    model = ""
    given = _parse_json(env.get("OPENCODE_CONFIG_CONTENT", ""))
    for settings in (*map(_read_json, _list_opencode_files(env)), given):
        model = str(settings.get("model") or model)
        for name in _section(settings, "provider"):
            options = _section(_section(_section(settings, "provider"), name), "options")
            urls |= _texts({name: options.get("baseURL")})
    for flag, value in pairwise(arguments):
        model = value if flag in ("-m", "--model") else model
    urls = {name: _FROM_ENV.sub(lambda found: env.get(found[1], ""), url) for name, url in urls.items()}
    provider = model.partition("/")[0]
    is_own = provider in urls and provider not in ("openai", "anthropic")
    values = {"all": urls[provider]} if is_own else urls
    for name in (provider,) if is_own else ("openai", "anthropic"):
        given = _merge(given, {"provider": {name: {"options": {"baseURL": _OPENAI}}}})
    return OwnSettings(values=values, sets={"OPENCODE_CONFIG_CONTENT": json.dumps(given)})


def _list_opencode_files(env: Env) -> Iterator[Path]:
    """Later ones go before earlier ones."""
    folder = Path(env.get("XDG_CONFIG_HOME") or _home(env, ".config"), "opencode")
    yield from (folder / name for name in ("config.json", "opencode.json", "opencode.jsonc"))
    if env.get("OPENCODE_CONFIG"):
        yield Path(env["OPENCODE_CONFIG"])
    here = Path.cwd()
    for place in reversed((here, *here.parents)):
        yield from (place / name for name in ("opencode.json", "opencode.jsonc"))


def _read_aider(env: Env, _: Sequence[str]) -> OwnSettings:
    """Its `.env` files go before the environment, and its own settings before these."""
    values = _read_dotenv(_home(env, ".env"), Path(".env"))
    for path in (_home(env, ".aider.conf.yml"), Path(".aider.conf.yml")):
        with suppress(OSError, ValueError, yaml.YAMLError):
            found = yaml.safe_load(path.read_text("utf-8"))
            values |= _texts({"OPENAI_API_BASE": _section({"": found}, "").get("openai-api-base")})
    return OwnSettings(values=values)


def _read_qwen(env: Env, _: Sequence[str]) -> OwnSettings:
    """The environment goes before its `.env` files."""
    found = _read_dotenv(_home(env, ".env"), _home(env, ".qwen/.env"), Path(".env"), Path(".qwen/.env"))
    return OwnSettings(values=found | dict(env))


def _home(env: Env, name: str) -> Path:
    return Path(env.get("HOME", "~")).expanduser() / name


def _read_dotenv(*paths: Path) -> dict[str, str]:
    values: dict[str, str] = {}
    for path in paths:
        with suppress(OSError, ValueError):
            found = re.findall(
                r"^\s*(?:export\s+)?(\w+)\s*=\s*(.*?)\s*$", path.read_text("utf-8"), re.MULTILINE
            )
            values |= {name: value.strip("'\"") for name, value in found}
    return values


def _read_json(path: Path) -> dict[str, Any]:
    """Empty for what cannot be read: the client itself will say so."""
    with suppress(OSError, ValueError):
        return _parse_json(path.read_text("utf-8"))
    return {}


def _parse_json(text: str) -> dict[str, Any]:
    with suppress(ValueError):
        return _section({"": json.loads(_NO_JSON.sub(lambda found: found[1] or "", text))}, "")
    return {}


def _section(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = values.get(name)
    return found if isinstance(found, dict) else {}


def _texts(values: object) -> dict[str, str]:
    pairs = values.items() if isinstance(values, dict) else ()
    return {name: value for name, value in pairs if isinstance(value, str) and value}


def _merge(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    both = {name: _merge(_section(values, name), new) for name, new in more.items() if isinstance(new, dict)}
    return values | more | both


_CLAUDE_FILES: Final = (".claude/settings.json", ".claude/settings.local.json")
_OPENAI_READS: Final = {"OPENAI_API_BASE": "default", "OPENAI_BASE_URL": "default"}
_ANTHROPIC_READS: Final = {"ANTHROPIC_API_BASE": "anthropic", "ANTHROPIC_BASE_URL": "anthropic"}
_ALL_READS: Final = {**_OPENAI_READS, **_ANTHROPIC_READS}
_ALL_SETS: Final = {
    **dict.fromkeys(_OPENAI_READS, _OPENAI),
    **dict.fromkeys(_ANTHROPIC_READS, "{root}"),
}

CLIENTS: Final = (
    KnownClient(
        names=("claude",),
        reads={"ANTHROPIC_BASE_URL": "anthropic"},
        sets={"ANTHROPIC_BASE_URL": "{root}"},
        read_own=_read_claude,
    ),
    KnownClient(names=("codex",), reads={"base_url": "default"}, read_own=_read_codex),
    KnownClient(
        names=("opencode",),
        reads={"openai": "default", "anthropic": "anthropic", "all": "all"},
        read_own=_read_opencode,
    ),
    KnownClient(
        names=("aider",),
        reads=_ALL_READS,
        sets=_ALL_SETS,
        arguments=("--openai-api-base", _OPENAI),
        read_own=_read_aider,
    ),
    KnownClient(
        names=("qwen",),
        reads={"OPENAI_BASE_URL": "default"},
        sets={"OPENAI_BASE_URL": _OPENAI},
        read_own=_read_qwen,
    ),
    # Everything else.
    KnownClient(names=(), reads=_ALL_READS, sets=_ALL_SETS),
)
