"""The processes of a cluster: what TF_CONFIG says of them, and how they are started and ended."""
