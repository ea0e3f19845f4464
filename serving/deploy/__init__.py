"""The server on other platforms; docs/deploy/ has the files for platforms that need no code."""
