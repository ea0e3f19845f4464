"""Code for running the server on other platforms; those in docs/deploy/ need only configuration."""
