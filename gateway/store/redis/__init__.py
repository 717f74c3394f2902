"""The store in Redis or Valkey, which many processes on many machines share.

`address` and `naming` import nothing of the client library, so settings can be checked without it.
"""
