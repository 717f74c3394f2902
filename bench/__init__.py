"""Measures one gateway process, and a bare aiohttp pass-through in the same run for comparison."""
