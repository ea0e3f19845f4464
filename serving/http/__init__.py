"""The models over HTTP: protocols that clients speak already, routes of our own, middleware."""
