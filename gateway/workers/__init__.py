"""Several processes on one port: a supervisor that starts and replaces workers and serves their store."""
