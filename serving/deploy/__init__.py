"""The server on other platforms; docs/deploy/ has the files that need no code."""
