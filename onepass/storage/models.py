"""Write models to folders as data: a graph, weights and a description; and read them back."""

import contextlib
import copy
import dataclasses
import functools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.files import make_folder, sweep, write_errors, write_text
from onepass.foundation.model_folders import PROGRAM_FOLDERS, SAVED_FILE, program_name, read_spec
from onepass.foundation.rules import UserError, must_be, whole_number
from onepass.likelihoods.codec import Codec, Real
from onepass.likelihoods.distribution import (
    Distribution,
    closed_form,
    cumulative_of,
    pixel_channels,
    table_of,
    tempers,
    with_density,
    with_normal,
)
from onepass.likelihoods.noise import Int, as_key
from onepass.model import Autoregressive
from onepass.networks.any_length import pad_time
from onepass.networks.conditions import Frames, Memory, is_at_rate, plain, specs_at
from onepass.networks.elements import Layout, filler
from onepass.networks.network import brings_step
from onepass.networks.symbols import settings_of
from onepass.networks.trainable import Listed, frozen_among
from onepass.samplers.fixed_point import MOVED
from onepass.step.periods import WholePeriods, period_of
from onepass.step.replay import operations_for
from onepass.step.tracing import random_arguments, spec_of_length
from onepass.step.verification import HALVES, relative_errors
from onepass.storage.frozen import (
    GRAPH_FILE,
    Frozen,
    FrozenFunction,
    FrozenProgram,
    nodes_of,
    read_program,
    write_program,
)


class StoredNetwork:
    """A network of a stored program.

    `lengths`, ascending, are those that it is stored for, to which inputs are padded; (): any
    length, or multiples of `period`, for the function `name`.
    """

    def __init__(
        self,
        program: FrozenProgram,
        listed: Listed,
        lengths: Sequence[int] = (),
        period: int = 1,
        name: str = "call",
    ) -> None:
        self._listed, self.lengths, self.period = listed, list(lengths), period
        self.no_step = "its graph depends on the length" if lengths else ""
        self._calls = {length: program[f"call_{length}"] for length in lengths}
        self._call = None if lengths else program[name]

    def __call__(self, inputs: tf.Tensor, *conditions: tf.Tensor) -> tf.Tensor:
        """Return the parameters, [batch, time, ...] or [batch, height, width, ...]."""
        if self._call is not None:
            return self._call(inputs, *conditions)
        count, most = inputs.shape[1], self.lengths[-1]
        if count is not None and count > most:
            raise ValueError(
                f"`network` cannot take {count:,} time steps: {self.no_step}, and it was stored for"
                f" at most {most:,}."
            )
        length = next(each for each in self.lengths if each >= (most if count is None else count))
        call = self._calls[length]
        given = [
            pad_time(x, length) if spec.shape[1:2] == [length] else x
            for x, spec in zip((inputs, *conditions), call.specs, strict=True)
        ]
        outputs = call(*given)
        return outputs[:, : tf.shape(inputs)[1] if count is None else count]


class SteppedStoredNetwork(StoredNetwork):
    """A stored network with a step for some batch sizes; others are computed in groups of rows."""

    def __init__(
        self, program: FrozenProgram, listed: Listed, lengths: Sequence[int], step_rows: list[int]
    ) -> None:
        super().__init__(program, listed, lengths)
        names = ("initial_state", "step")
        self._stored = {n: tuple(program[f"{name}_{n}"] for name in names) for n in step_rows}

    def _rows_of_group(self, batch: int) -> int:
        return batch if batch in self._stored else max(self._stored)

    def initial_state(self, batch: int) -> Any:
        """See `SteppedNetwork.initial_state`."""
        rows = self._rows_of_group(batch)
        state = self._stored[rows][0]()
        return [state if isinstance(state, list) else [state]] * -(-batch // rows)

    def step(self, inputs: tf.Tensor, state: Any, *conditions: Any) -> tuple[tf.Tensor, Any]:
        """See `SteppedNetwork.step`."""
        batch, outputs = inputs.shape[0], []
        rows = self._rows_of_group(batch)
        for time in range(inputs.shape[1]):
            now = [x[:, time : time + 1] for x in (inputs, *conditions) if x is not None]
            made = []
            for group, before in enumerate(state):
                given = (x[group * rows : (group + 1) * rows] for x in now)
                first, *others = (_pad_rows(x, rows) for x in given)
                made.append(self._stored[rows][1](first, *before, *others))
            outputs.append(tf.concat([output for output, *_ in made], 0)[:batch])
            state = [after for _, *after in made]
        return tf.concat(outputs, 1), state


def _pad_rows(values: tf.Tensor, count: int) -> tf.Tensor:
    return tf.pad(values, [[0, count - values.shape[0]], *[[0, 0]] * (values.shape.rank - 1)])


class StoredDistribution:
    """A stored distribution, with the methods of `likelihoods.distribution.Distribution`."""

    def __init__(self, program: FrozenProgram, spec: dict[str, Any]) -> None:
        self.name, self.levels = spec["name"], spec["levels"]
        self.num_parameters = spec["num_parameters"]
        self.noise_channels = spec["noise_channels"]
        self.channels = spec["channels"]
        self.tempers = spec["tempers"]
        self.log_prob, self._draw = program["log_prob"], program["draw"]
        self._noise, self._mode = program["noise"], program.get("mode")
        self.cumulative, self.table = program.get("cumulative"), program.get("table")
        self.form = spec.get("form")
        self.sections = spec.get("sections")
        self.min_log_scale = spec.get("min_log_scale")
        # A repetition penalty depends on the logits before they are normalised.
        if (logits := program.get("logits")) is not None:
            self.logits = logits
        # Only a `Continuous` and a `Normal` have these methods.
        if (density := program.get("log_density_2")) is not None:
            by_rank = {2: density, 3: program["log_density_3"]}
            self.log_density = lambda rows, values: by_rank[values.shape.rank](rows, values)
        if (normal := program.get("normal")) is not None:
            self.normal = lambda rows: tuple(normal(rows))

    def sample(self, parameters: tf.Tensor, noise: tf.Tensor, temperature: Real = 1.0) -> tf.Tensor:
        """See `Distribution.sample`."""
        heat = tf.cast(temperature, tf.float32)
        if not heat.shape.rank:
            return self._draw(parameters, noise, heat)
        each = tf.reshape(heat, [-1])  # one per row; the stored program takes a single one
        rows = [slice(row, row + 1) for row in range(heat.shape[0])]
        return tf.concat([self._draw(parameters[n], noise[n], each[n.start]) for n in rows], 0)

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        """See `Distribution.mode`; raise NotImplementedError if it is not stored."""
        if self._mode is None:
            raise NotImplementedError(f"`mode` must be a method of {self.name} to be stored.")
        return self._mode(tf.cast(parameters, self._mode.specs[0].dtype))

    def noise(self, seed: Int, rows: tf.Tensor, start: Int, length: Int) -> tf.Tensor:
        """See `Distribution.noise`."""
        noise = self._noise(as_key(seed), rows, start, length)
        count = length if isinstance(length, int) else None
        return tf.ensure_shape(noise, [rows.shape[0], count, self.noise_channels])


class StoredCodec:
    """A stored codec, with the methods of `onepass.likelihoods.codec.Codec`."""

    def __init__(self, program: FrozenProgram, levels: int | None, log_unit: float) -> None:
        self.levels, self.log_unit = levels, log_unit
        self._encode = program["encode"]
        self.decode = functools.partial(_call_at_rank, program["decode"])
        self.scale = functools.partial(_call_at_rank, program["scale"])

    def encode(self, elements: tf.Tensor) -> tf.Tensor:
        """See `Codec.encode`; raise ValueError for floats if it encodes integers."""
        elements = tf.convert_to_tensor(elements)
        if self._encode.specs[0].dtype.is_integer and not elements.dtype.is_integer:
            raise ValueError(must_be("elements", "integers", elements.dtype.name))
        return _call_at_rank(self._encode, elements)


def _call_at_rank(function: FrozenFunction, values: Any) -> tf.Tensor:
    spec = function.specs[0]
    values = tf.cast(values, spec.dtype)
    missing = spec.shape.rank - values.shape.rank
    if missing == 0:
        return function(values)
    sizes = tf.shape(values)
    result = function(tf.reshape(values, tf.concat([[1] * missing, sizes], 0)))
    return tf.ensure_shape(tf.reshape(result, sizes), values.shape)


def load(folder: str | Path) -> Autoregressive:
    """Load a model that `save` wrote; raise UserError unless its graph only computes."""
    with readable(Path(folder)):
        program, spec = read(Path(folder))
        distribution = StoredDistribution(program, spec["distribution"])
        model = Autoregressive(
            network_of(program, spec),
            distribution,
            codec=StoredCodec(program, distribution.levels, spec["log_unit"]),
            order=spec["order"],
            inputs=_read_spec(spec["inputs"]),
            conditions={name: _read_spec(each) for name, each in spec["conditions"].items()},
            start=spec["start"],
            input_scale=spec["input_scale"],
        )
        model.sample_rate_hz = spec.get("sample_rate_hz")
        return model


@contextlib.contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Raise UserError for whatever a damaged or hostile folder leads to inside the block."""
    try:
        yield
    except (MemoryError, UserError):
        raise
    except Exception as error:  # its type depends on the damaged byte
        line = " ".join((str(error) or type(error).__name__).split())[:200]
        raise UserError(f"{folder} contains no model that `save` wrote: {line}.") from error


def network_of(program: FrozenProgram, spec: dict[str, Any]) -> StoredNetwork:
    """Return the network of a program."""
    rows, listed = spec["step_rows"], listed_weights(program)
    lengths = spec.get("lengths", ())
    if rows:
        return SteppedStoredNetwork(program, listed, lengths, rows)
    return StoredNetwork(program, listed, lengths, spec.get("period", 1))


def listed_weights(program: FrozenProgram) -> Listed:
    """Return all variables of a stored program, and those that are trained."""
    return Listed(program.variables, [each for each in program.variables if each.trainable])


def read(folder: Path) -> tuple[FrozenProgram, dict[str, Any]]:
    """Read a folder that `save` wrote: its program, and the values in `autoregressive.json`."""
    spec = read_spec(folder)
    return read_program(folder / spec["program"], spec), spec


def _read_spec(described: dict[str, Any]) -> tf.TensorSpec:
    shape, dtype = described["shape"], tf.as_dtype(described["dtype"])
    if described.get("kind") == "frames":
        return Frames(shape, dtype, hop=described["hop"], extra=described["extra"])
    return (Memory if described.get("kind") == "memory" else tf.TensorSpec)(shape, dtype)


ROWS = 2
COMPARED_LENGTHS = (5, 12)  # neither equal to the number of rows, nor to each other
SIDES = (8, 6)
# Largest difference by rounding, relative to the largest value, by the bytes of a number.
TOLERANCES = {2: 0.1, 4: 1e-3, 8: 1e-6}

Call = Callable[..., tf.Tensor]


def check_calls(
    live: Sequence[Call], stored: Sequence[Call], specs: Sequence[tf.TensorSpec], axes: int = 1
) -> None:
    """Raise UserError unless stored networks give the outputs of the live ones."""
    for one, other in zip(live, stored, strict=True):
        _refuse_fault("stored", "network", first_fault(one, other, specs, axes))


def first_fault(
    live: Call, stored: Call, specs: Sequence[tf.TensorSpec], axes: int = 1, period: int = 1
) -> str:
    """Return how a stored network differs from the live one at some sizes; "" if it does not."""
    for arguments in _examples(specs, axes, period):
        try:
            expected = live(*arguments)
        except (ValueError, TypeError, IndexError, tf.errors.OpError):
            continue  # the network does not take this size
        try:
            found = stored(*arguments)
            fault = difference(expected, found)
            if fault:
                run = tf.function(lambda *given: stored(*given), autograph=False)
                graph = run.get_concrete_function(*arguments).graph.as_graph_def()
                fault = difference(expected, found, TOLERANCES[2] if has_halves(graph) else None)
        except (ValueError, TypeError, tf.errors.OpError) as error:
            fault = f"fails: {' '.join(str(error).split())[:200]}"
        if fault:
            return f"{fault} for inputs of the shape {arguments[0].shape.as_list()}"
    return ""


def difference(
    expected: Any, found: Any, tolerance: float | None = None, moved: float = 0.0
) -> str:
    """Return how tensors differ by more than rounding and a share `moved` of values; else ""."""
    expected, found = map(tf.convert_to_tensor, (expected, found))
    if expected.shape != found.shape:
        return f"has the shape {found.shape.as_list()} in place of {expected.shape.as_list()}"
    if tolerance is None:
        tolerance = TOLERANCES.get(expected.dtype.size, 0.0)
    errors = relative_errors(found, expected)
    if np.isinf(errors).any():
        return "is not finite elsewhere"
    if (errors > tolerance).sum() <= moved * errors.size:
        return ""
    return f"differs by {errors.max():.2g}"


def check_values(
    verb: str, pairs: Mapping[str, tuple[Any, Any]], tolerance: float | None = None
) -> None:
    """Raise UserError unless what is read back is what the live model gives, by what it is.

    The model is then not what `verb` says, such as "stored". A few values of a "draw" may differ.
    """
    for name, (expected, found) in pairs.items():
        moved = MOVED if name == "draw" else 0.0
        _refuse_fault(verb, name, difference(expected, found, tolerance, moved))


def _refuse_fault(verb: str, name: str, fault: str) -> None:
    if fault:
        raise UserError(f"The model cannot be {verb}: read back, its {name} {fault}.")


def has_halves(graph: Any) -> bool:
    """Return whether a graph, a GraphDef, computes in a type of two bytes."""
    halves = {dtype.as_datatype_enum for dtype in HALVES}
    return any(value.type in halves for node in nodes_of(graph) for value in node.attr.values())


def _examples(specs: Sequence[tf.TensorSpec], axes: int, period: int) -> Iterator[list[tf.Tensor]]:
    hops = [spec.hop for spec in specs if isinstance(spec, Frames)]
    hop = max([*hops, period])  # a network is stored as it takes whole frames
    lengths = [[-(-length // hop) * hop] for length in COMPARED_LENGTHS]
    for sizes in lengths if axes == 1 else [SIDES]:
        yield random_arguments(specs_at(specs, ROWS, sizes))


def assigning_nothing(model: Any) -> Any:
    """Return an image model without assignments in its network, any other model as it is."""
    network: Any = getattr(model, "symbol_network", None)
    if model.order != "raster" or not hasattr(network, "call"):
        return model
    traced = function_of(network.call, network_specs(model)).get_concrete_function()
    read = operations_for(traced.graph.outputs, assigns=True)
    if not any(op.type.startswith("Assign") for op in read):
        return model
    frozen = Frozen()
    frozen.add_traced("call", traced)
    changed = copy.copy(network)
    changed.call = FrozenProgram.of(frozen)["call"]
    made = Autoregressive.of_symbols(changed, model.distribution, model.codec, "raster")
    made.sample_rate_hz = model.sample_rate_hz
    return made


STEP_ROWS = (1, 8)  # batch sizes for which a step is stored
LENGTHS = (64, 512)  # lengths for which a network is stored if its graph depends on the length


def freeze(model: Autoregressive, with_step: bool) -> tuple[Frozen, dict[str, Any]]:
    """Return all functions of a model: network, step, distribution and codec; and its lengths.

    The lengths are those that the network is stored for, if its graph depends on the length, and
    {} otherwise; a network of several rates of time has its period in their place. A derived step
    is stored only for a network with lengths; others have it after loading.
    """
    network, frozen = model.symbol_network, Frozen()
    specs, call, period = network_specs(model), network.exact, period_of(network.exact)
    if period > 1:
        call = call.function.inner
    lengths = list(getattr(network.network, "lengths", ()))
    given = [network.inputs, *model.conditions.values()]
    if not lengths:
        traced = function_of(call, specs)
        if model.order == "time" and first_fault(call, traced, given, period=period):
            call, period = network.exact, 1
            lengths = list(LENGTHS)
    if lengths and getattr(network, "hoisted", None) is not None:
        raise UserError(
            "The model cannot be stored: its graph depends on the length, and it reads frames."
        )
    if not lengths:
        frozen.add_traced("call", traced.get_concrete_function())
    for length in lengths:
        sized = [plain(spec_of_length(each, length)) for each in given]
        frozen.add(f"call_{length}", call, sized)
    rows = STEP_ROWS if with_step and (lengths or brings_step(network.network)) else ()
    for each in rows:
        _add_step(frozen, network.stepped, specs, each)
    name = f"call_{lengths[0]}" if lengths else "call"
    _add_distribution(frozen, model.distribution, model.layout, frozen.dtype_of(name))
    add_codec(frozen, model.codec, model.layout.rank)
    kept = {"lengths": lengths} if lengths else {"period": period} if period > 1 else {}
    return frozen, kept | {"step_rows": list(rows)}


def _add_distribution(
    frozen: Frozen, distribution: Distribution, layout: Layout, parameters_dtype: tf.DType
) -> None:
    channels = pixel_channels(distribution)
    axes = layout.noise_axes + 1
    dtype = tf.float32 if distribution.levels is None else tf.int32
    parameters = tf.TensorSpec([None] * axes + [distribution.num_parameters], parameters_dtype)
    event = [channels] if channels else []
    symbols = tf.TensorSpec([None] * axes + event, dtype)
    drawn = distribution.noise(0, tf.range(1), 0, 1)
    noise = tf.TensorSpec([None] * axes + [distribution.noise_channels], drawn.dtype)
    scalar = tf.TensorSpec([], tf.int32)
    key, rows = tf.TensorSpec([2], tf.uint32), tf.TensorSpec([None], tf.int32)
    frozen.add("log_prob", distribution.log_prob, [parameters, symbols])
    frozen.add("draw", distribution.sample, [parameters, noise, tf.TensorSpec([])])
    with contextlib.suppress(AttributeError, NotImplementedError):
        frozen.add("mode", lambda x: distribution.mode(tf.cast(x, tf.float32)), [parameters])
    frozen.add("noise", distribution.noise, [key, rows, scalar, scalar])
    if (cumulative := cumulative_of(distribution)) is not None:
        frozen.add("cumulative", cumulative, [parameters, symbols])
    if (table := table_of(distribution)) is not None:
        frozen.add("table", table, [parameters])
        if (logits := getattr(distribution, "logits", None)) is not None:
            frozen.add("logits", logits, [parameters])
    continuous = with_density(distribution)
    if layout.rank == 2 and continuous is not None:
        for rank in (2, 3):  # values [batch, time], or [draws, batch, time]
            values = tf.TensorSpec([None] * rank)
            frozen.add(f"log_density_{rank}", continuous.log_density, [parameters, values])
    normal = with_normal(distribution)
    if layout.rank == 2 and normal is not None:
        frozen.add("normal", normal.normal, [parameters])


def add_codec(frozen: Frozen, codec: Codec, rank: int) -> None:
    """Add `encode`, `decode` and `scale`, for elements with `rank` axes."""
    axes = [None] * rank
    symbols = tf.TensorSpec(axes, tf.float32 if codec.levels is None else tf.int32)
    elements = tf.TensorSpec(axes, tf.as_dtype(codec.decode(tf.zeros([], symbols.dtype)).dtype))
    frozen.add("encode", codec.encode, [elements])
    frozen.add("decode", codec.decode, [symbols])
    frozen.add("scale", codec.scale, [symbols])


def network_specs(model: Autoregressive) -> list[tf.TensorSpec]:
    """Return the specs of the network's arguments, for any batch and length."""
    if not hasattr(model.symbol_network, "call"):
        raise UserError("A shipped kind of network is stored in its own model folder.")
    return [model.symbol_network.inputs, *map(plain, model.conditions.values())]


def _add_step(frozen: Frozen, stepped: Any, specs: Sequence[tf.TensorSpec], rows: int) -> None:
    """Add `initial_state_ROWS()` and `step_ROWS(inputs, *state[, condition])`, of flat states."""
    state = stepped.initial_state(rows)
    flat = [tf.TensorSpec(x.shape, x.dtype) for x in tf.nest.flatten(state)]
    sized = [tf.TensorSpec([rows, 1, *spec.shape[2:]], spec.dtype) for spec in specs]

    def step(inputs: tf.Tensor, *given: tf.Tensor) -> Any:
        before = tf.nest.pack_sequence_as(state, given[: len(flat)])
        return stepped.step(inputs, before, *given[len(flat) :])

    frozen.add(f"initial_state_{rows}", lambda: stepped.initial_state(rows), [])
    frozen.add(f"step_{rows}", step, [sized[0], *flat, *sized[1:]])


def function_of(function: Callable, specs: Sequence[Any]) -> Any:
    """Return a `tf.function` with one input signature."""
    return tf.function(function, autograph=False, input_signature=list(specs))


def save(model: Autoregressive, folder: str | Path, *, sample_rate_hz: int | None = None) -> Path:
    """See `onepass.save`; the program has the functions of `freeze`, and the weights."""
    model.follow(by_trace=True)
    network = model.symbol_network
    # A step whose state depends on a length or on conditions is derived after loading instead.
    fixed = [each for each in model.conditions.values() if not is_at_rate(each)]
    with_step = network.has_step and not getattr(network, "has_horizon", False) and not fixed
    spec = _spec(model) | {"sample_rate_hz": rate_of(model, sample_rate_hz)}
    check = functools.partial(check_written, model)
    return write(lambda: freeze(model, with_step), model, spec, Path(folder), check)


def check_written(model: Autoregressive, program: FrozenProgram, spec: dict[str, Any]) -> None:
    """Raise UserError unless a program gives the network's outputs, log-probabilities and draws."""
    network, own = network_of(program, spec), model.symbol_network
    specs = [own.inputs, *model.conditions.values()]
    taken = network if network.period == 1 else WholePeriods(network, specs, network.period)
    check_calls([own.call], [taken], specs, 1 if model.order == "time" else 2)
    if model.layout.rank != 2:
        return
    sizes = [2, 5]
    symbols = tf.zeros(sizes, tf.int32 if model.distribution.levels else tf.float32)
    dtype = program["log_prob"].specs[0].dtype
    shape = [*sizes, model.distribution.num_parameters]
    parameters = tf.cast(tf.random.stateless_normal(shape, [0, 1]), dtype)
    noise = model.distribution.noise(0, tf.range(sizes[0]), 0, sizes[1])
    live, heat = model.distribution, tf.constant(1.0)
    scores = live.log_prob(parameters, symbols), program["log_prob"](parameters, symbols)
    draws = live.sample(parameters, noise, heat), program["draw"](parameters, noise, heat)
    check_values("stored", {"log-probability": scores, "draw": draws})


def rate_of(model: Any, sample_rate_hz: int | None) -> int | None:
    """Return the sample rate in Hz to store with a model; None if none is given or known."""
    rate_hz = model.sample_rate_hz if sample_rate_hz is None else sample_rate_hz
    if rate_hz is not None:
        rate_hz = whole_number(rate_hz, "sample_rate_hz")
    if rate_hz is not None and model.order != "time":
        raise ValueError(must_be("sample_rate_hz", "None for images", rate_hz))
    if sample_rate_hz is not None and filler(model.codec).dtype.kind in "iu":
        raise ValueError(
            f"`sample_rate_hz` must be None for a model of integers, got {sample_rate_hz}; an audio"
            " model has codec=onepass.likelihoods.Linear or MuLaw."
        )
    return rate_hz


def write(
    make: Callable[[], tuple[Frozen, dict[str, Any]]],
    model: Any,
    spec: dict[str, Any],
    folder: Path,
    check: Callable[[FrozenProgram, dict[str, Any]], None],
) -> Path:
    """Write a frozen graph and its specification, to which `make` may add, and return the folder.

    The program is written next to the one that the folder has, and read back. Last, one rename
    replaces the specification, which names the program. A process that ends before or after it
    leaves a whole model, and what is not named is removed by the next call.
    """
    made, before = not folder.exists(), program_name(folder)
    name = next(each for each in PROGRAM_FOLDERS if each != before)
    place = folder / name
    try:
        with write_errors(folder), _in_graphs(), named_reasons("stored", place / GRAPH_FILE):
            shutil.rmtree(make_folder(folder) / name, ignore_errors=True)
            sweep(folder)
            frozen, more = make()
            spec = spec | more | {"program": name, "weights": _weights(frozen, model)}
            spec["functions"] = {n: dataclasses.asdict(x) for n, x in frozen.functions.items()}
            spec["sha256"] = write_program(make_folder(place), frozen)
            spec = json.loads(json.dumps(spec))
            check(read_program(place, spec), spec)
            write_text(folder / SAVED_FILE, json.dumps(spec, indent=2) + "\n")
    except BaseException:
        shutil.rmtree(folder if made else place, ignore_errors=True)
        raise
    if before:
        shutil.rmtree(folder / before, ignore_errors=True)
    return folder


def _weights(frozen: Frozen, model: Any) -> list[tuple[str, str]]:
    """Return the kind of each weight, "trained", "frozen" or "constant", and a variable's name."""
    variables = [each for each in frozen.weights if isinstance(each, tf.Variable)]
    kinds = {id(each): "trained" for each in variables}
    kinds |= {id(variables[n]): "frozen" for n in frozen_among(variables, model)}
    return [
        (kinds[id(each)], each.name.partition(":")[0]) if id(each) in kinds else ("constant", "")
        for each in frozen.weights
    ]


@contextlib.contextmanager
def _in_graphs() -> Iterator[None]:
    """Let functions run as graphs inside the block, also where they run eagerly to be debugged."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(False)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


@contextlib.contextmanager
def named_reasons(verb: str, program: Path | None = None) -> Iterator[None]:
    """Convert an error raised inside the block to a UserError, "The model cannot be {verb}".

    So is an error of the file `program`, in which the scan finds what it refuses.
    """
    try:
        yield
    except UserError as error:
        reason = str(error).removeprefix(f"{program} ")
        if reason == str(error):
            raise
        raise UserError(f"The model cannot be {verb}: it {reason}") from error
    except (AssertionError, KeyError, NotImplementedError, TypeError, ValueError) as error:
        line = " ".join(str(error).split())[:300]
        raise UserError(f"The model cannot be {verb}: {line}") from error


def _spec(model: Autoregressive) -> dict[str, Any]:
    network, distribution = model.symbol_network, model.distribution
    return {
        "kind": model.kind,
        "order": model.order,
        "inputs": _describe_spec(network.inputs),
        "conditions": {name: _describe_spec(each) for name, each in model.conditions.items()},
        **settings_of(network),
        "distribution": {
            "name": type(distribution).__name__,
            "levels": distribution.levels,
            "num_parameters": distribution.num_parameters,
            "noise_channels": distribution.noise_channels,
            "channels": pixel_channels(distribution),
            "tempers": tempers(distribution),
            **closed_form(distribution),
        },
        "log_unit": model.codec.log_unit,
    }


def _describe_spec(spec: tf.TensorSpec) -> dict[str, Any]:
    kind: dict[str, Any] = {"kind": "memory"} if isinstance(spec, Memory) else {}
    if isinstance(spec, Frames):
        kind = {"kind": "frames", "hop": spec.hop, "extra": spec.extra}
    return {"shape": spec.shape.as_list(), "dtype": spec.dtype.name, **kind}
