"""How many tokens upstream will count, from usage and raw sizes. Knows no tokenizer."""
