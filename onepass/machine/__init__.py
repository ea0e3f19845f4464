"""The step machine: an interpreter, compiled once, that runs the steps of networks on CPUs."""
