"""The running gateway: `gateway serve` from its first line to its end."""
