"""The command `onepass`: its verbs, their options, and the files that they read and write."""
