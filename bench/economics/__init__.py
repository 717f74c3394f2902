"""What policies cost: nine conversations through the real plan, at three price tables.

A provider's cache is simulated, nothing is sent, and no clock is read: the same tree gives the same tables.
Ids of conversations are drawn and named by summaries, so bills differ in the fifth digit.
"""
