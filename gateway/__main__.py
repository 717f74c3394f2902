"""The command line: each command of `gateway`, and its exit status."""

import os
import sys
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Final

from gateway.command_line.options import parse_arguments

# As a shell reports a program that Ctrl-C has ended. `serve` ends with 0.
_INTERRUPTED: Final = 130
# Each takes its options and returns the exit status. Only the one that was chosen is imported, so that
# `--help` takes no longer than Python itself.
_COMMANDS: Final = {
    "serve": "gateway.app.serve:serve",
    "run": "gateway.app.run:run",
    "demo": "gateway.demo.play:show_demo",
    "doctor": "gateway.doctor.command:run_doctor",
    "models": "gateway.command_line.model_report:run_models",
    "replay": "gateway.replay.command:run_replay",
    "export": "gateway.command_line.conversation_commands:run_export",
    "check": "gateway.command_line.check:run_check",
    "conversations": "gateway.command_line.conversation_commands:run_conversations",
    "top": "gateway.command_line.top:run_top",
    "schema": "gateway.command_line.check:run_schema",
    "tenants": "gateway.command_line.tenant_commands:run_tenants",
    "health": "gateway.command_line.health:run_health",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 for success; 1 if the gateway cannot serve or is not well, a model's window is
    unknown, or the demo failed; 2 for wrong usage or settings.
    """
    options = parse_arguments(arguments)
    from gateway.core.errors import GatewayError
    from gateway.settings import SettingsError
    from gateway.store.interface import StoreError

    try:
        status: int = resolve_name(_COMMANDS[options.command])(options)
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
    except (GatewayError, StoreError, OSError) as error:
        from gateway.command_line.process_setup import complain

        complain(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
