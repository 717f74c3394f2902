"""What to send and what to compact: plans, cuts, prunings and summaries. Knows no wire format and calls no
model.
"""
