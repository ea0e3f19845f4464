"""The models over HTTP: three standard protocols, routes of our own, middleware."""
