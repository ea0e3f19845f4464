"""Optimizers of every make on a parameter server, against one device: a program.

The worker and the parameter server are servers of this same process. A line for each kind of
optimizer has the largest difference of its weights after a few steps, and the losses.
"""

import json
import os
import sys

import tensorflow as tf
from replicator_training_checks import KINDS, trained

from replicator import strategies
from replicator.launch.tf_config import local_tasks


def main():
    """Prints the lines, and ends the process, because servers of TensorFlow cannot be stopped."""
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    chief, *others = local_tasks(chief=1, worker=1, ps=1)
    servers = [
        tf.distribute.Server(tf.train.ClusterSpec(task.cluster), task.kind, task.index)
        for task in others
    ]
    os.environ["TF_CONFIG"] = chief.tf_config
    replicator = strategies.parameter_server()
    for kind in KINDS:
        expected, _ = trained(strategies.single(), kind)
        weights, losses = trained(replicator, kind)
        apart = max(abs(a - b).max() for a, b in zip(weights, expected, strict=True))
        print("kind", json.dumps([kind, float(apart), losses]), flush=True)
    del servers
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
