"""Transparency and the relay, proved over real sockets: what goes in comes out."""
