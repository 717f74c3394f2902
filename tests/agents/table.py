"""The rows of all trials as one table for readers."""

from collections.abc import Sequence

from tests.agents.trial import Row

_HEAD = (
    "agent",
    "package",
    "API",
    "window",
    "floor",
    "requests",
    "side calls",
    "windows",
    "summaries",
    "digests",
    "summary calls",
    "fewest",
    "prunings",
    "by client",
    "refused",
    "status",
    "seconds",
)


def render_table(rows: Sequence[Row]) -> str:
    """In Markdown, columns aligned."""
    lines = [_HEAD, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    head, *body = [
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
    ]
    rule = "-|-".join("-" * width for width in widths)
    return "\n".join(f"| {line} |" for line in (head, rule, *body)) + "\n"


def _cells(row: Row) -> tuple[str, ...]:
    client = row.client
    return (
        client.name,
        f"{client.package} {client.version}",
        client.api,
        f"{client.window:,}",
        f"{row.floor_tokens:,}",
        str(row.requests),
        str(row.side_calls),
        f"{row.windows:.1f}",
        str(row.summaries),
        str(row.digests),
        str(row.summary_calls),
        str(row.fewest_summaries),
        str(row.prunings),
        str(row.client_compactions),
        str(len(row.refused)),
        str(row.status),
        f"{row.seconds:.0f}",
    )
