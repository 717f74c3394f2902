"""What operators and hooks are told: logs, metrics, events, the compaction log, and original messages."""
