"""Reductions, gathers and broadcasts over replicas, of any dtype and in the same order on all."""
