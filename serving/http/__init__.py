"""The models over HTTP: three standard protocols, onepass's own routes, and middleware."""
