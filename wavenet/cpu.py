"""Autoregressive generation on a CPU: the cached sampler, compiled by Numba.

    packed = pack(network)
    state = initial_state(packed, batch=1)
    levels, state = generate_chunk(packed, state, noise, condition)

The weights are packed once; the state holds every layer's queue, so a sound made in chunks is the
sound made at once. Each row is the same, to the last bit, in any batch and with any number of
threads. The arithmetic is float32 whatever the network's `compute_dtype`.
"""

import concurrent.futures
import dataclasses
import functools
import math
import os

import numpy as np

from likelihoods import Categorical, Gaussian
from wavenet import cpu_step
from wavenet.kernels import LANES, aligned, pack_matrix, padded


@dataclasses.dataclass(frozen=True)
class PackedWeights:
    """The weights of a network in the order in which a step reads them."""

    memory: np.ndarray
    plan: np.ndarray  # a cpu_step.PLAN with everything but a state's part filled in
    prediction: np.ndarray
    dilations: np.ndarray
    rings: np.ndarray  # where each layer's ring starts, in steps
    slots: int  # length of all rings, in steps
    min_log_scale: float
    noise_channels: int


@dataclasses.dataclass
class _Group:
    """The buffers of a group of rows that walk through the network together."""

    rows: slice
    plan: np.ndarray
    arrays: tuple[np.ndarray, ...]
    memory: tuple[np.ndarray, ...]


@dataclasses.dataclass
class GenerationState:
    """Queues and past samples of a batch; `generate_chunk` advances it in place."""

    batch: int
    position: int
    pairs: bool
    groups: list[_Group]


def pack(network) -> PackedWeights:
    """The weights of a `WaveNet`, laid out for the compiled step; later changes do not reach it."""
    config = network.config
    layers = network.stack.layers
    plan = np.zeros(1, cpu_step.PLAN)
    _fill_sizes(plan, config, network.likelihood)
    parts = _front_parts(network) | _layer_parts(network) | _head_parts(network)
    memory = aligned([sum(_whole_lines(part.size) for part in parts.values())])
    start = 0
    for name, part in parts.items():
        memory[start : start + part.size] = part.ravel()
        plan[name] = memory[start:].ctypes.data
        start += _whole_lines(part.size)
    plan["present_bytes"] = parts["present"].nbytes // len(layers)
    plan["condition_bytes"] = parts["condition"].nbytes // len(layers)
    dilations = np.array(config.dilations, np.int64)
    spans = (config.filter_width - 1) * dilations
    return PackedWeights(
        memory,
        plan,
        _prediction(network),
        dilations,
        np.cumsum(spans) - spans,
        int(spans.sum()),
        getattr(network.likelihood, "min_log_scale", 0.0),
        network.likelihood.noise_channels,
    )


def initial_state(
    packed: PackedWeights, batch: int, threads: int | None = None, groups=None
) -> GenerationState:
    """The state before the first sample."""
    threads = threads or len(os.sched_getaffinity(0))
    groups = groups or max(1, min(batch, threads // 2))
    edges = np.linspace(0, batch, groups + 1).astype(int)
    return GenerationState(
        batch,
        0,
        threads >= 2 * groups,
        [_group(packed, slice(int(a), int(b))) for a, b in zip(edges[:-1], edges[1:], strict=True)],
    )


def generate_chunk(packed, state, noise, condition=None, temperature=1.0):
    """int32 [batch, time] levels and the state after them."""
    levels, _ = _run(packed, state, condition, noise, temperature, None, False)
    return levels, state


def teacher_forced(packed, state, levels, condition=None):
    """float32 [batch, time, parameters]"""
    noise = np.zeros([*levels.shape, packed.noise_channels], np.float32)
    _, parameters = _run(packed, state, condition, noise, 1.0, levels, True)
    return parameters, state


def _run(packed, state, condition, noise, temperature, forced, with_parameters):
    batch, steps = noise.shape[:2]
    levels = np.zeros([batch, steps], np.int32)
    parameters = np.zeros(
        [batch, steps if with_parameters else 0, packed.plan[0]["num_parameters"]], np.float32
    )
    forced = np.zeros([batch, 0], np.int32) if forced is None else forced
    jobs = []
    pool = _pool()
    for group in state.groups:
        rows = group.rows
        condition_rows = (
            None
            if condition is None
            else np.ascontiguousarray(np.asarray(condition)[rows].transpose(1, 0, 2), np.float32)
        )
        at = 0 if condition is None else condition_rows.ctypes.data
        lead = functools.partial(
            _lead,
            packed,
            group,
            state.position,
            at,
            noise[rows],
            temperature,
            forced[rows],
            levels[rows],
            parameters[rows],
            not state.pairs,
        )
        group.memory[-1][:] = 0
        if state.pairs:
            jobs.append(
                pool.submit(
                    cpu_step.run_aside,
                    group.plan[0],
                    packed.dilations,
                    packed.rings,
                    state.position,
                    at,
                    steps,
                )
            )
        if group is state.groups[-1]:
            lead()
        else:
            jobs.append(pool.submit(lead))
        keep = condition_rows
    for j in jobs:
        j.result()
    state.position += steps
    return levels, parameters


def _lead(packed, group, start, at, noise, temperature, forced, levels, parameters, alone):
    cpu_step.run_lead(
        group.plan[0],
        packed.dilations,
        packed.rings,
        start,
        at,
        group.arrays,
        noise,
        np.float32(temperature),
        np.float32(packed.min_log_scale),
        forced,
        levels,
        parameters,
        alone,
    )


@functools.cache
def _pool():
    return concurrent.futures.ThreadPoolExecutor(max_workers=8)


def _whole_lines(size):
    return -(-size // 16) * 16


def _fill_sizes(plan, config, likelihood):
    residual, gate, skip = config.residual_channels, config.gate_channels, config.skip_channels
    values = dict(
        layers=config.layers,
        width=config.filter_width,
        front_width=config.front_width,
        condition_inputs=config.gate_inputs,
        residual_inputs=residual,
        gate_inputs=gate,
        skip_inputs=skip,
        num_parameters=likelihood.num_parameters,
        levels=likelihood.levels,
        components=getattr(likelihood, "components", 0),
    )
    for name, n in dict(
        residual=residual, gate=gate, skip=skip, output=likelihood.num_parameters
    ).items():
        values[name + "_vectors"] = padded(n) // LANES
        values[name + "_bytes"] = padded(n) * 4
    values["likelihood"] = (
        cpu_step.CATEGORICAL
        if isinstance(likelihood, Categorical)
        else cpu_step.GAUSSIAN
        if isinstance(likelihood, Gaussian)
        else cpu_step.MIXTURE
    )
    for k, v in values.items():
        plan[k] = v


def _pad(a, n=None):
    a = np.asarray(a, np.float32)
    out = np.zeros([*a.shape[:-1], padded(a.shape[-1])], np.float32)
    out[..., : a.shape[-1]] = a
    return out


def _pad_halves(a):
    return np.concatenate([_pad(h) for h in np.split(np.asarray(a, np.float32), 2, -1)], -1)


def _front_parts(network):
    gain = network.config.input_gain
    kernel = np.asarray(network.front_kernel, np.float32)
    if network.config.likelihood != "categorical":
        kernel = pack_matrix(kernel * np.float32(gain))
    else:
        kernel = _pad(kernel)
    return {"front": kernel, "front_bias": _pad(network.front_bias)}


def _layer_parts(network):
    L = network.stack.layers
    half = np.float32(math.sqrt(0.5))
    mean = np.float32(math.sqrt(1 / len(L)))
    z = np.zeros(0, np.float32)
    past = [pack_matrix(t) for l in L for t in _pad_halves(l.gate_kernel)[:-1]]
    present = []
    rb = []
    for l in L:
        present.append(pack_matrix(_pad_halves(l.gate_kernel)[-1]))
        if l.residual_kernel is not None:
            present.append(pack_matrix(np.asarray(l.residual_kernel) * half))
            rb.append(_pad(np.asarray(l.residual_bias) * half))
        else:
            present.append(
                np.zeros(
                    network.config.gate_channels * padded(network.config.residual_channels),
                    np.float32,
                )
            )
    cond = [
        pack_matrix(_pad_halves(l.condition_kernel)) for l in L if l.condition_kernel is not None
    ]
    return {
        "past": np.concatenate(past),
        "condition": np.concatenate([z, *cond]),
        "gate_bias": np.concatenate([_pad_halves(l.gate_bias) for l in L]),
        "residual_bias": np.concatenate([z, *rb]),
        "present": np.concatenate(present),
        "skip": np.concatenate([pack_matrix(np.asarray(l.skip_kernel) * mean) for l in L]),
    }


def _head_parts(network):
    k = np.asarray(network.head2_kernel, np.float64).copy()
    b = np.asarray(network.head2_bias, np.float64).copy()
    gain = network.config.input_gain
    lk = network.likelihood
    if network.config.likelihood != "categorical":
        n = lk.num_parameters // 3 if network.config.likelihood == "logistic" else 1
        m = slice(-2 * n, -n)
        s = slice(lk.num_parameters - n, None)
        k[:, m] /= gain
        b[m] /= gain
        b[s] -= math.log(gain)
    return {
        "skip_bias": _pad(network.skip_bias),
        "head1": pack_matrix(np.asarray(network.head1_kernel)),
        "head1_bias": _pad(network.head1_bias),
        "head2": pack_matrix(k),
        "head2_bias": _pad(b),
    }


def _prediction(network):
    if network.prediction_kernel is None:
        return np.zeros(0, np.float32)
    return np.asarray(network.prediction_kernel, np.float32).copy()


def _group(packed, rows):
    n = rows.stop - rows.start
    p = packed.plan.copy()
    q = p[0]
    L = int(q["layers"])
    gb = int(q["gate_bytes"]) // 4
    shapes = dict(
        rings=[packed.slots, n, q["residual_bytes"] // 4],
        sums=[L, 8, n, 2 * gb],
        conditions=[L if q["condition_inputs"] else 0, 8, n, 2 * gb],
        units=[L, n, gb],
        skips=[n, q["skip_bytes"] // 4],
        hidden=[n, q["skip_bytes"] // 4],
        outputs=[n, q["output_bytes"] // 4],
        history=[n, q["front_width"]],
    )
    b = {k: aligned([int(x) for x in v]) for k, v in shapes.items()}
    for k, v in b.items():
        p[k] = v.ctypes.data
    p["rows"] = n
    c = aligned([32], np.int64)
    p["lead_done"] = c.ctypes.data
    p["aside_done"] = c[16:].ctypes.data
    latest = np.full(n, -1, np.int32)
    return _Group(
        rows, p, (b["history"], latest, b["outputs"], packed.prediction), (*b.values(), c)
    )
