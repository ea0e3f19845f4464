"""`onepass bench serving`: a server and its clients."""
