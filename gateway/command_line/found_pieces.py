"""What a search in the messages of a conversation found, for a person."""

from rich.console import Console
from rich.text import Text

from gateway.admin.answers import FoundPart, SearchPage
from gateway.command_line.console import make_printable
from gateway.command_line.figures import show_ago


def show_found(console: Console, page: SearchPage) -> None:
    """Each piece with the place it is from."""
    if not page.found:
        console.print(Text("nothing found in the messages that were summarized or pruned"), soft_wrap=True)
    for number, part in enumerate(page.found):
        console.print(Text(("\n" if number else "") + _describe(page, part), "bold"), soft_wrap=True)
        console.print(Text("\n".join(map(make_printable, part.text.splitlines()))))


def _describe(page: SearchPage, part: FoundPart) -> str:
    elsewhere = f" of {part.conversation}" if part.conversation != page.id else ""
    details = [make_printable(each) for each in (part.role, part.tool, part.path) if each]
    return (
        f"message {part.position}{elsewhere}: {', '.join(details)}; "
        f"characters {part.start:,} to {part.end:,}; taken out {show_ago(part.when)} ago"
    )
