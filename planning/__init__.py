"""Plans of training on several devices: predicted time and memory, schedules of pipelines."""
