"""Bytes to values and back: requests, responses, wire formats, content codings. Pure, like core."""
