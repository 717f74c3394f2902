"""How much of the gateway a tenant may use: requests in a minute and at once, and summaries in an hour.

What is used is counted over all processes that share a store: by the `limits` library in windows, and in
places that running requests hold. While the store cannot be reached, each process counts for itself.
"""
