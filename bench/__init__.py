"""Speed of one gateway process, each figure beside a bare aiohttp pass-through's in the same run."""
