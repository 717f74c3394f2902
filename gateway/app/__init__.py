"""A gateway at work: its construction, its start and its end, its reloads and its processes."""
