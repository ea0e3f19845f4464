"""Plan training on several devices: predicted time and memory, and pipeline schedules."""
