"""`refold replay`: recorded sessions through the plan of a gateway, without a network, to choose thresholds.

`sources` turns files into requests, `simulation` plays them through what a running gateway consists of, with
stand-ins for what would reach an upstream; the rest measures and shows what came of it. Decides nothing about
a conversation.
"""
