"""Code for running the server on platforms for which the files in docs/deploy/ do not suffice."""
