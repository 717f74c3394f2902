"""`refold demo`: a stand-in for a model, an agent, and a gateway between them, to see a compaction."""
