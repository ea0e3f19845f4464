"""Exported models: export, manifest, loading, signatures, and the programs behind them."""
