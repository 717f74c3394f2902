"""Plain tables: a title, aligned columns, numbers to the right."""

from collections.abc import Sequence


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    print(f"\n{title}")
    for row in (columns, *rows):
        cells = [
            cell.ljust(width) if not at else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  " + "  ".join(cells), flush=True)


def render_target(value: float, target: float, *, at_least: bool) -> str:
    """The target and whether it is met: `>= 0.60 ok`."""
    is_met = value >= target if at_least else value <= target
    sign = ">=" if at_least else "<="
    return f"{sign} {target:.2f} {'ok' if is_met else 'MISSED'}"
