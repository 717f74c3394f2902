"""What is known of a conversation: its turns, how they are recognized, and what a client left out of them.

Knows nothing of plans or compactions, and nothing of connections.
"""
