"""The store of a gateway with several workers: one process serves it, the workers use it over a socket.

`served_store` is the workers' side and `store_server` the other. They exchange `calls` and `replies`, all of
one moment together, in `frames`.
"""
