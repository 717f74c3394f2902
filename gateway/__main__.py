"""The command line: each command of `gateway`, and its exit status.

Each command imports what it needs, so that `--help` takes no longer than Python itself.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.command_line.options import load_chosen_settings, parse_arguments

if TYPE_CHECKING:
    from gateway.command_line.model_report import ModelReport
    from gateway.settings import Settings

# As a shell reports a program that Ctrl-C has ended. `serve` ends with 0.
_INTERRUPTED: Final = 130
# After each of some twenty turns of the demo.
_DEMO_PAUSE_SECONDS: Final = 0.3


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 for success; 1 if the gateway cannot serve or is not well, a model's window is
    unknown, or the demo failed; 2 for wrong usage or settings.
    """
    options = parse_arguments(arguments)
    from gateway.settings import SettingsError
    from gateway.store.interface import StoreError

    try:
        status = _COMMANDS[options.command](options)
        # Not `sys.stdout.flush()`: after `>&-` there is no such stream, which `print` allows for.
        print(end="", flush=True)
        return status
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # What reads the output has ended, such as `head`. At its exit Python would try to write the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (StoreError, OSError) as error:
        from gateway.app.serve import complain

        complain(str(error))
        return 1


def _serve(options: argparse.Namespace) -> int:
    from gateway.app.serve import serve

    return serve(options)


def _run(options: argparse.Namespace) -> int:
    from gateway.app.run import run

    return run(options, os.environ)


def _demo(options: argparse.Namespace) -> int:
    import asyncio

    from gateway.demo.play import run_demo

    # Slow enough to follow on the page.
    pause_seconds = _DEMO_PAUSE_SECONDS if options.keep or sys.stdout.isatty() else 0.0
    keep = _wait_signal if options.keep else None
    running = run_demo(partial(print, flush=True), keep=keep, pause_seconds=pause_seconds)
    return 0 if asyncio.run(running) else 1


async def _wait_signal() -> None:
    """Returns after SIGTERM or SIGINT."""
    import asyncio
    import signal

    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, ended.set)
    await ended.wait()


def _doctor(options: argparse.Namespace) -> int:
    from gateway.doctor.command import run_doctor

    return run_doctor(options)


def _conversations(options: argparse.Namespace) -> int:
    from gateway.command_line.conversation_commands import run_conversations

    return run_conversations(options)


def _top(options: argparse.Namespace) -> int:
    from gateway.command_line.top import run_top

    return run_top(options)


def _models(options: argparse.Namespace) -> int:
    from gateway.command_line.console import render_json
    from gateway.command_line.model_report import describe_sources, list_sources

    settings = load_chosen_settings(options, os.environ)
    if options.names:
        reports = [_make_report(settings, name, asks=options.ask) for name in options.names]
        facts = [report.facts for report in reports]
        if options.json:
            print(render_json(facts[0] if len(facts) == 1 else {"models": facts}))
        else:
            print("\n\n".join(report.text for report in reports))
        return 0 if all(report.is_known for report in reports) else 1
    print(render_json(list_sources(settings)) if options.json else describe_sources(settings))
    return 0


def _make_report(settings: "Settings", model: str, *, asks: bool) -> "ModelReport":
    import asyncio
    import logging

    from gateway.command_line.model_report import describe_model

    # What the book logs about an unknown model is in the report; what an upstream has answered is not.
    logging.basicConfig(level=logging.ERROR, format="%(message)s", stream=sys.stderr)
    logging.getLogger("gateway.discovery").setLevel(logging.INFO)
    return asyncio.run(describe_model(settings, model, asks=asks))


def _replay(options: argparse.Namespace) -> int:
    from gateway.command_line.console import make_console
    from gateway.replay.command import run_replay

    return run_replay(options, os.environ, make_console(), make_console(is_error=True))


def _export(options: argparse.Namespace) -> int:
    from gateway.command_line.conversation_commands import run_export

    return run_export(options)


def _check(options: argparse.Namespace) -> int:
    from pathlib import Path

    from gateway.app.serve import warn
    from gateway.settings import load_settings, render_summary
    from gateway.store.address import make_store

    settings = load_settings(Path(options.file), os.environ)
    # `serve` would refuse a valid store URL of a kind that this build does not support.
    make_store(settings.store)
    report = _make_report(settings, options.model, asks=False) if options.model is not None else None
    if options.json:
        _print_facts(settings, report)
    else:
        warn(settings)
        print(render_summary(settings), *([report.text] if report is not None else []), sep="\n")
    return 0 if report is None or report.is_known else 1


def _print_facts(settings: "Settings", report: "ModelReport | None") -> None:
    from gateway.command_line.console import render_json
    from gateway.command_line.json_reports import list_facts

    print(render_json({**list_facts(settings), **({"model": report.facts} if report is not None else {})}))


def _tenants(options: argparse.Namespace) -> int:
    from gateway.command_line.console import render_json
    from gateway.command_line.json_reports import list_tenant_facts
    from gateway.command_line.tenant_commands import ask_person, list_tenants, purge_tenant

    if options.action == "list":
        if options.json:
            tenants = list_tenant_facts(load_chosen_settings(options, os.environ))
            print(render_json({"tenants": tenants}))
        else:
            print(list_tenants(options, os.environ))
        return 0
    return purge_tenant(options, os.environ, ask_person, partial(print, file=sys.stderr))


def _schema(_: argparse.Namespace) -> int:
    from gateway.settings.reference import render_json_schema

    print(render_json_schema(), end="")
    return 0


def _health(options: argparse.Namespace) -> int:
    from gateway.command_line.health import find_ill_health

    ill_health = find_ill_health(options, os.environ)
    if ill_health is not None:
        print(f"gateway: {ill_health}", file=sys.stderr)
    return 0 if ill_health is None else 1


_COMMANDS: Final = {
    "serve": _serve,
    "run": _run,
    "demo": _demo,
    "doctor": _doctor,
    "models": _models,
    "replay": _replay,
    "export": _export,
    "check": _check,
    "conversations": _conversations,
    "top": _top,
    "schema": _schema,
    "tenants": _tenants,
    "health": _health,
}


if __name__ == "__main__":
    sys.exit(main())
