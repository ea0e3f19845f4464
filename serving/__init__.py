"""The process boundary: exported models, loading, sampling and serving them."""
