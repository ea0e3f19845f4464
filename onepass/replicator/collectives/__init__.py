"""Reduce, gather and broadcast over replicas, for any dtype, in the same order on all replicas."""
