"""The running gateway: `refold serve` from its first line to its end."""
