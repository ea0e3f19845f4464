"""The HTTP server: three standard protocols, onepass's own routes, and middleware."""
