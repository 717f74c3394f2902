"""What models can hold: gathered from settings, model lists, refusals and a bundled table."""
