"""Bundles: export, loading, signatures, and the programs in them."""
