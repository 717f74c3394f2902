"""The endpoint `/mcp` of the data port: clients search what was summarized or cleared, over the Model Context
Protocol.

Each request stands alone: no session is kept, so any process may answer it. The package `mcp` (an extra) is
imported with the first request.
"""
