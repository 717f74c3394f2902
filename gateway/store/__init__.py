"""Stores keep bytes under a key for a limited time, on disk, in memory or in Redis. See `interface`."""
