"""The processes of a cluster: TF_CONFIG, start and end."""
