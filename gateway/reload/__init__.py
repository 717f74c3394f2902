"""New settings for a running gateway: when they are loaded, what of them holds now, and who they serve."""
