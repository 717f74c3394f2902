"""Output of a coding agent's tools: JSON, code, logs, Chinese text, listings, drawn from a seed.

Sizes are tokens of the toy's counter at bias 1.0, near those of o200k.
"""

import random
from collections.abc import Callable, Iterator

from tests.toy.counting import count_text, render_compact

_NOUNS = (
    "cache",
    "cursor",
    "index",
    "router",
    "session",
    "parser",
    "token",
    "buffer",
    "worker",
    "ledger",
    "schema",
)
_VERBS = (
    "load",
    "parse",
    "merge",
    "flush",
    "render",
    "resolve",
    "update",
    "collect",
    "verify",
    "encode",
    "split",
)
_CJK_LINES = (
    "检查配置文件是否正确，然后重新启动服务器。",
    "测试失败：无法连接到数据库，连接超时，请稍后重试。",
    "このモジュールは設定を読み込み、キャッシュを更新します。",
    "旧的工具结果会变成占位符，客户端保留完整的历史记录。",
    "警告：索引已过期，需要重新构建后才能继续查询。",
    "設定ファイルを確認してから、サーバーを再起動してください。",
)
_SENTENCES = (
    "The {noun} now has its own module, and the old entry point only forwards to it.",
    "I will {verb} the {noun} first, because the {noun2} depends on it.",
    "Two tests of the {noun} still fail; the reason seems to be the order in which we {verb} it.",
    "Next I look at how the {noun2} is used by the {noun}, and whether anything else reads it.",
    "The {noun2} can stay as it is.",
)


def _json_line(rng: random.Random) -> str:
    row = {
        "id": rng.randrange(10**6),
        "name": f"{rng.choice(_NOUNS)}_{rng.choice(_NOUNS)}",
        "status": rng.choice(("open", "closed", "pending")),
        "ratio": round(rng.random(), 4),
        "path": f"src/{rng.choice(_NOUNS)}/{rng.choice(_VERBS)}.py",
        "tags": rng.sample(_NOUNS, 2),
    }
    return render_compact(row)


def _code_line(rng: random.Random) -> str:
    noun, verb = rng.choice(_NOUNS), rng.choice(_VERBS)
    return rng.choice(
        (
            f"def {verb}_{noun}({noun}: {noun.title()}, limit: int = {rng.randrange(999)}) -> list[str]:",
            f"    for {noun} in self.{verb}_all({noun}s, key=lambda item: item.{rng.choice(_NOUNS)}):",
            f"        if not {noun}.is_{verb}ed and {noun}.size > {rng.randrange(9999)}:",
            f'            raise ValueError(f"cannot {verb} {{{noun}!r}}")',
            f"        return [{noun}.{verb}() for {noun} in {rng.choice(_NOUNS)}s]",
        )
    )


def _log_line(rng: random.Random) -> str:
    hour, minute, second = rng.randrange(24), rng.randrange(60), rng.randrange(60)
    stamp = f"2026-03-{rng.randrange(1, 29):02}T{hour:02}:{minute:02}:{second:02}Z"
    level, worker = (
        rng.choice(("INFO", "DEBUG", "WARN", "ERROR")),
        f"{rng.choice(_NOUNS)}-{rng.randrange(16)}",
    )
    return f"{stamp} {level} [{worker}] {rng.choice(_VERBS)} took {rng.randrange(5000)} ms"


def _cjk_line(rng: random.Random) -> str:
    return f"{rng.choice(_CJK_LINES)}({rng.choice(_NOUNS)} {rng.randrange(1000)})"


def _listing_line(rng: random.Random) -> str:
    file = f"{rng.choice(_VERBS)}_{rng.choice(_NOUNS)}.py"
    return f"-rw-r--r-- 1 dev dev {rng.randrange(99999):6} src/{rng.choice(_NOUNS)}/{file}"


def _sentence(rng: random.Random) -> str:
    noun, noun2 = rng.sample(_NOUNS, 2)
    return rng.choice(_SENTENCES).format(noun=noun, noun2=noun2, verb=rng.choice(_VERBS))


_LINES: dict[str, Callable[[random.Random], str]] = {
    "json": _json_line,
    "code": _code_line,
    "cjk": _cjk_line,
    "log": _log_line,
    "listing": _listing_line,
}
KINDS = tuple(_LINES)


def _lines(rng: random.Random, make: Callable[[random.Random], str], tokens: float) -> Iterator[str]:
    spent = 0.0
    while spent < tokens:
        line = make(rng)
        spent += count_text(line) + 1
        yield line


def make_tool_text(rng: random.Random, kind: str, tokens: int) -> str:
    return "\n".join(_lines(rng, _LINES[kind], tokens))


def make_prose(rng: random.Random, tokens: int) -> str:
    return " ".join(_lines(rng, _sentence, tokens))


def make_fact(rng: random.Random) -> str:
    return "FACT-" + "".join(rng.choices("ABCDEFGHJKLMNPQRSTUVWXYZ23456789", k=8))


def make_word(rng: random.Random) -> str:
    return rng.choice(_NOUNS)
