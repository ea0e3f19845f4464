"""The client of the server, over HTTP or gRPC."""
