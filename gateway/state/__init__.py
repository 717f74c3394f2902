"""What is known about conversations: records in memory in front of a store. Knows no wire format."""
