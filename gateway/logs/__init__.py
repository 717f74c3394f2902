"""How log lines look: as text, or as JSON with ids as fields."""
