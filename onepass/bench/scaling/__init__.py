"""`onepass bench scaling`: training steps on one replica and on several."""
