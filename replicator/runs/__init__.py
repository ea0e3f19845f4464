"""What a run leaves on disk and says to the person watching."""
