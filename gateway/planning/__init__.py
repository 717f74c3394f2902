"""Measures requests and gathers what decisions need; learns how upstreams count. Starts no compaction."""
