"""`onepass bench`: measurements side by side, in one run."""
