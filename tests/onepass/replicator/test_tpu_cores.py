"""Steps for a TPU, traced for two cores that this machine lacks."""

import itertools
import types

import numpy as np
import pytest
import tensorflow as tf

from onepass.replicator import collectives
from onepass.replicator.strategies import TpuReplicator

# The types that the sum over the cores of a TPU takes (ops.cc: CrossReplicaSum).
SUMMED = {tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.uint32}


class Resolver:
    """Names the two cores of a TPU; `device:TPU:N` is looked for only when a step runs."""

    def __init__(self):
        self.cores = [f"/job:worker/replica:0/task:0/device:TPU:{n}" for n in range(2)]

    def get_tpu_system_metadata(self):
        return types.SimpleNamespace(
            num_cores=2,
            num_hosts=1,
            num_of_cores_per_host=2,
            topology=None,
            devices=[types.SimpleNamespace(name=name) for name in self.cores],
        )

    def get_job_name(self):
        return "worker"


@pytest.fixture(scope="module")
def replicator():
    with tf.Graph().as_default():  # where nothing asks for the devices
        strategy = tf.compat.v1.distribute.experimental.TPUStrategy(Resolver())
    return TpuReplicator("tpu", strategy)


def traced(replicator, step_fn, batch):
    """The operations of one step, those of the functions that it calls among them."""
    record, batches = collectives.CollectiveRecord(), itertools.repeat(tf.constant(batch))

    @tf.function(autograph=False)
    def step():
        return replicator._one_step(step_fn, batches, record, replicator._combined_outputs)

    graph = step.get_concrete_function().graph.as_graph_def()
    inside = [node for function in graph.library.function for node in function.node_def]
    return [*graph.node, *inside]


def sums(nodes):
    return [tf.dtypes.as_dtype(n.attr["T"].type) for n in nodes if n.op == "CrossReplicaSum"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "int64", "uint8"])
@pytest.mark.parametrize("primitive", ["all_sum", "all_gather", "broadcast", "min", "max"])
def test_every_primitive_sums_what_a_tpu_can_sum(replicator, primitive, dtype):
    def step(batch):
        value = tf.cast(batch, dtype)
        if primitive in ("min", "max"):
            return replicator.all_reduce(value, primitive)
        return getattr(replicator, primitive)(value)

    nodes = traced(replicator, step, np.arange(4.0, dtype=np.float32))
    assert {n.attr["num_replicas"].i for n in nodes if n.op == "TPUReplicateMetadata"} == {2}
    assert sums(nodes) and set(sums(nodes)) <= SUMMED


def test_limbs_summed_are_the_sum():
    draws = np.random.default_rng(0)
    values = draws.integers(-(2**63), 2**63, [8, 100], np.int64)
    with np.errstate(over="ignore"):
        expected = values.sum(0)
    limbs = tf.reduce_sum(collectives.to_limbs(tf.constant(values)), 0)
    assert limbs.dtype == tf.int32
    np.testing.assert_array_equal(collectives.from_limbs(limbs), expected)
