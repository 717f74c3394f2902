"""`refold check` and `refold schema`: what a settings file means, and what it may hold."""

import argparse
import os
from pathlib import Path

from gateway.command_line.console import render_json
from gateway.command_line.model_report import report_model
from gateway.command_line.process_setup import warn
from gateway.settings import load_settings
from gateway.settings.show import list_facts, render_summary
from gateway.settings.validate import render_json_schema
from gateway.store.address import make_store


def run_check(options: argparse.Namespace) -> int:
    """The exit status. Raises SettingsError and StoreRefused."""
    settings = load_settings(Path(options.file), os.environ)
    # `serve` would refuse a valid store URL of a kind that this build does not support.
    make_store(settings.store)
    report = report_model(settings, options.model) if options.model is not None else None
    if options.json:
        print(render_json(list_facts(settings) | ({"model": report} if report is not None else {})))
    else:
        warn(settings)
        print(render_summary(settings), *([report.text] if report is not None else []), sep="\n")
    return 0 if report is None or report.is_known else 1


def run_schema(_: argparse.Namespace) -> int:
    print(render_json_schema(), end="")
    return 0
