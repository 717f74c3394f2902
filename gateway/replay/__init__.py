"""`refold replay`: recorded sessions through the plan of a gateway, without a network, to choose thresholds.

`readers` turn files into requests, `simulation` plays them through what a running gateway consists of, with
stand-ins (`offline`) for what would reach an upstream; the rest measures and shows what came of it. Decides
nothing about a conversation.
"""
