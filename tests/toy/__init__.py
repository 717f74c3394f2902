"""Toys: a strict upstream, a scripted agent, and the sums that judge a run. Real sockets, no mocks."""
