"""A client of the server, over HTTP or gRPC."""
