"""What stored responses and the gateway's own tool need in Responses."""
