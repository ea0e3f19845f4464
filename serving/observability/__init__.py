"""The server's logs, metrics and traces."""
