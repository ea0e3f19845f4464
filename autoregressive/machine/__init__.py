"""The step machine: a network's step as a program for one loop that is compiled once."""
