"""Exported models: export, manifest, loading, signatures, and their programs."""
