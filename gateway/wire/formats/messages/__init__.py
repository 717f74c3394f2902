"""What threads and the gateway's own tool need in Messages."""
