"""One package for each wire format, and the registry that lists them."""
