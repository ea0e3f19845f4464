"""Exact samples of a teacher from its student's drafts: speculative sampling of sound.

The student draws a block x and knows p_S(x_t | x_<t); one pass of the teacher over the block gives
p_T(x_t | x_<t) everywhere. A draft is kept with probability min(1, p_T / p_S); the first one that
is not is drawn anew from the residual distribution

    r(x) = max(0, p_T(x) - p_S(x)) / sum_x max(0, p_T(x) - p_S(x))

so that every sample has the teacher's distribution, whatever the student is (Leviathan et al. 2023,
arXiv 2211.17192, theorem 3.5; for continuous drafts Wang et al. 2024, arXiv 2411.11925). r is drawn
by rejection: a candidate of p_T is kept with probability max(0, 1 - p_S / p_T).

Probabilities are those of the teacher's levels; a logistic's or a normal's are its masses. The
student goes on from a corrected sample by inverting its flow there, z_t = (x_t - mu_t) / s_t.

All random numbers have an address, (seed, row, t). So x_t is a function of x_<t and of its own
numbers, and the sound is the same for every block length and batch, up to rounding.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from distill.flows import Past
from distill.generation import condition_between
from distill.model import StudentModel, load_student
from distill.residual import Prediction
from distill.student import Condition, ParallelWaveNet
from distill.teacher import load_teacher
from likelihoods import Distribution, Gaussian, LogisticMixture, levels, noise
from likelihoods.capabilities import with_density
from likelihoods.distribution import Continuous
from replicator.runs.errors import UserError
from wavenet.model import SpeechModel
from wavenet.samplers.fixed_point import BlockPass, PassState
from wavenet.samplers.generation import condition_of, padded
from wavenet.sound_network import Network
from wavenet.speech_model import PassCount, Request

SAME = ("sample_rate_hz", "hop_samples", "gain_db", "features", "speakers")  # of model.json
BLOCK_SAMPLES = 64
FARTHEST = 20.0  # noise of a corrected sample; the student meets none beyond
LOWEST_LOG_SCALE = -40.0  # of a draft's likelihood: it holds none up
CANDIDATES = 16  # in a round
ROUNDS = 1 << 17  # at most: where so many candidates fail, p and q differ by rounding alone
KEEPING, DRAWING = 1, 2  # folded into the seed, for random numbers of their own


class Conditionals(NamedTuple):
    """Distributions of levels, by their parameters [..., parameters]."""

    likelihood: Distribution
    parameters: tf.Tensor

    def log_prob(self, levels):
        """Return nats, float32 [...]."""
        return self.likelihood.log_prob(self.parameters, levels)

    def at(self, place):
        """Return those of one position [batch] in each row of [batch, time, parameters]."""
        return self._replace(parameters=tf.gather(self.parameters, place, batch_dims=1))


class Address(NamedTuple):
    """The address of random numbers: seed uint32 [2], rows int32 [batch], position of the first."""

    seed: tf.Tensor
    rows: tf.Tensor
    start: tf.Tensor


def kept(drafts, q: Conditionals, p: Conditionals, address: Address):
    """Return which drafts int32 [batch, time] of `q` are kept, given p after each, bool."""
    seed = noise.fold_in(address.seed, KEEPING)
    uniform = noise.uniform(seed, address.rows, address.start, drafts.shape[1])[..., 0]
    return tf.math.log(uniform) <= p.log_prob(drafts) - q.log_prob(drafts)


def redrawn(q: Conditionals, p: Conditionals, address: Address, wanted):
    """Return levels of the residual distribution of one position per row where wanted, [batch]."""

    def draw(count, levels, found):
        drawn, suits = _candidate(q, p, address, count)
        return count + 1, tf.where(found, levels, drawn), found | suits

    start = (tf.constant(0), tf.zeros_like(address.rows), ~wanted)
    return tf.while_loop(
        lambda *state: ~tf.reduce_all(state[2]), draw, start, maximum_iterations=ROUNDS
    )[1]


def _candidate(q: Conditionals, p: Conditionals, address: Address, count):
    """Return the first kept one of a round of candidates, [batch], and whether there is one."""
    rows = tf.shape(address.rows)[0]
    numbers = count * CANDIDATES + tf.range(CANDIDATES)
    seeds = noise.fold_in(noise.fold_in(address.seed, DRAWING), numbers)
    where = (
        tf.repeat(seeds, rows, 0),
        tf.tile(address.rows, [CANDIDATES]),
        tf.tile(address.start, [CANDIDATES]),
        1,
    )
    own, uniform = p.likelihood.noise(*where), noise.uniform(*where, lane=1)
    drawn = p.likelihood.sample(p.parameters, tf.reshape(own, [CANDIDATES, rows, own.shape[-1]]))
    uniform = tf.reshape(uniform[:, 0, 0], [CANDIDATES, rows])
    suits = uniform < -tf.math.expm1(q.log_prob(drawn) - p.log_prob(drawn))
    number = tf.range(CANDIDATES)[:, tf.newaxis]
    first = tf.reduce_min(tf.where(suits, number, CANDIDATES - 1), 0)
    return tf.reduce_sum(tf.where(number == first, drawn, 0), 0), tf.reduce_any(suits, 0)


class _Block(NamedTuple):
    """The inputs of every pass over a block.

    seed: uint32 [2]. rows: int32 [batch]. start: int32 [], position of the block. noise: float32
    [batch, time]. spoken, given: the conditions of student and teacher. pasts, state: what the
    samples before left in the student and in the teacher.
    """

    seed: tf.Tensor
    rows: tf.Tensor
    start: tf.Tensor
    noise: tf.Tensor
    spoken: Condition
    given: tf.Tensor | None
    pasts: list[Past]
    state: PassState


class _Guess(NamedTuple):
    """A block between two passes.

    final: int32 [batch], samples that are known to be final; one more than there are if the last
    pass confirmed them all. levels: int32 [batch, time]. noise: float32 [batch, time], what the
    student makes them of. corrected: int32 [batch], how many levels
    are no drafts. passes: int32 []. pasts, state: after
    the block.
    """

    final: tf.Tensor
    levels: tf.Tensor
    noise: tf.Tensor
    corrected: tf.Tensor
    passes: tf.Tensor
    pasts: list[Past]
    state: PassState


class SpeculativeSampler:
    """Samples a teacher with its student's drafts, by their current weights.

    Blocks are rounded up to what student and teacher take as one; the teacher's levels lie at equal
    distances.
    """

    def __init__(
        self, student: ParallelWaveNet, network: Network, block_samples: int = BLOCK_SAMPLES
    ):
        if with_density(network.likelihood) is None:
            raise ValueError("`network` must have an output with a density, got a softmax.")
        self.student, self.network = student, network
        self._pass = BlockPass(network)
        config = student.config
        self._row_samples = config.row_samples if config.domain == "residual" else 1
        together = math.lcm(self._pass.bunch, config.bunch_samples, self._row_samples)
        self.block_samples = -(-block_samples // together) * together
        number = network.config.levels
        self._draft: Continuous = Gaussian(number, LOWEST_LOG_SCALE)
        if student.noise_kind == "logistic":
            self._draft = LogisticMixture(number, 1, LOWEST_LOG_SCALE)
        self._block = tf.function(self.block, jit_compile=True, autograph=False)

    def stream(self, request: Request, count: PassCount) -> Iterator[np.ndarray]:
        """Levels int32 [batch, up to block_samples], one block after another.

        request: without a prime, at temperature 1. count: takes note of the passes.
        """
        if request.prime is not None or request.temperature != 1.0:
            raise ValueError("`request` must have no prime and temperature 1 for drafts.")
        batch, length = len(request.rows), self.block_samples
        seed, rows = noise.as_key(request.seed), tf.constant(request.rows, tf.int32)
        given = condition_of(self.network, request)
        pasts, state = self.student.empty_pasts(batch), self._pass.initial_state(batch)
        for start, spoken in self._spoken(request):
            drawn = self.student.noise(seed, rows, start, length)
            part = None if given is None else padded(given[:, start : start + length], length)
            here = _Block(seed, rows, tf.constant(start), drawn, spoken, part, pasts, state)
            done = self._block(here)
            pasts, state = done.pasts, done.state
            made = min(length, request.num_samples - start)
            corrected = float(done.corrected.numpy().mean())
            count.add(int(done.passes), length, corrected)
            yield done.levels.numpy()[:, :made]

    def _spoken(self, request: Request) -> Iterator[tuple[int, Condition]]:
        """Yield the position and the student's condition of every block."""
        student, length = self.student, self.block_samples
        together = math.lcm(length, student.config.hop_samples)
        phase = tf.zeros([len(request.rows)], tf.float64)
        for first in range(0, request.num_samples, together):
            last = min(first + together, request.num_samples)
            whole, phase = condition_between(student, request, first, last, phase)
            for start in range(first, last, length):
                yield start, self._part(whole, start - first, length)

    def _part(self, whole: Condition, first: int, length: int) -> Condition:
        """Return the condition of `length` samples from `first` on, zeros beyond its end."""

        def part(values, samples: int):
            start, count = first // samples, length // samples
            return None if values is None else padded(values[:, start : start + count], count)

        prediction = whole.prediction
        if prediction is not None:
            prediction = Prediction(*(part(x, self._row_samples) for x in prediction))
        bunch = self.student.config.bunch_samples
        channels, held = part(whole.channels, bunch), part(whole.held, self._row_samples)
        return Condition(channels, part(whole.source, 1), prediction, held)

    def block(self, block: _Block) -> _Guess:
        """Return the block once a pass has confirmed all of it, a pure function."""
        batch, length = block.noise.shape
        guess = _Guess(
            tf.zeros([batch], tf.int32),
            tf.zeros([batch, length], tf.int32),
            block.noise,
            tf.zeros([batch], tf.int32),
            tf.constant(0),
            block.pasts,
            block.state,
        )
        return tf.while_loop(
            lambda guess: tf.reduce_any(guess.final <= length),
            lambda guess: [self._verified(block, guess)],
            [guess],
            maximum_iterations=length + 1,
        )[0]

    def _verified(self, block: _Block, guess: _Guess) -> _Guess:
        likelihood, length = self.network.likelihood, block.noise.shape[1]
        flowed, pasts = self.student.chunk(guess.noise, block.spoken, block.pasts)
        location, log_scale = (tf.cast(x, tf.float32) for x in flowed[1:])
        drafted = levels.sample_level(location, log_scale, guess.noise, self.network.config.levels)
        place = tf.range(length)
        final = place < guess.final[:, None]
        drafted = tf.where(final, guess.levels, drafted)
        parameters, read = self._pass(block.state, drafted, block.given)
        q = Conditionals(self._draft, _parameters(self._draft, location, log_scale))
        p = Conditionals(likelihood, parameters)
        address = Address(block.seed, block.rows, block.start)
        settled = final | kept(drafted, q, p, address)
        first = tf.reduce_min(tf.where(settled, length, place), 1)
        at = tf.minimum(first, length - 1)
        address = address._replace(start=block.start + at)
        fresh = redrawn(q.at(at), p.at(at), address, first < length)[:, None]
        here = place == first[:, None]
        inverted = (self.network.codec.scale(fresh) - location) * tf.exp(-log_scale)
        inverted = tf.clip_by_value(inverted, -FARTHEST, FARTHEST)
        return _Guess(
            first + 1,
            tf.where(here, fresh, drafted),
            tf.where(here, inverted, guess.noise),
            guess.corrected + tf.cast(first < length, tf.int32),
            guess.passes + 1,
            pasts,
            self._pass.after(read, drafted, tf.fill(tf.shape(block.rows), length)),
        )


def _parameters(draft: Continuous, location, log_scale):
    """Return the parameters of a draft's likelihood, [batch, time, parameters]."""
    weight = [tf.zeros_like(location)] * (draft.num_parameters - 2)
    return tf.stack([*weight, location, log_scale], -1)


@dataclasses.dataclass(frozen=True)
class SpeculativeModel(SpeechModel):
    """A WaveNet whose samples its student drafts.

    student: reads what the WaveNet reads.
    """

    student: StudentModel = dataclasses.field(kw_only=True)

    backends: ClassVar = ("auto",)
    primable: ClassVar = False
    refinable: ClassVar = False

    def _drawn(self, request: Request, backend, chunk_samples: int) -> Iterator[np.ndarray]:
        if request.temperature != 1.0:
            raise UserError(f"The temperature must be 1 for drafts, got {request.temperature:g}.")
        self.passes.clear()
        return self._sampler.stream(request, self.passes)

    @functools.cached_property
    def _sampler(self) -> SpeculativeSampler:
        return SpeculativeSampler(self.student.network, self.network)


def speculative(teacher: SpeechModel, student: StudentModel) -> SpeculativeModel:
    """Return the teacher with the student's drafts; UserError for models of other sounds."""
    for name in SAME:
        expected, found = teacher.spec[name], student.spec[name]
        if expected != found:
            raise UserError(f"A draft needs the model's `{name}`, {expected}; it has {found}.")
    fields = {field.name: getattr(teacher, field.name) for field in dataclasses.fields(teacher)}
    return SpeculativeModel(**(fields | {"passes": PassCount()}), student=student)


def load_speculative(path: Path, draft: Path) -> SpeculativeModel:
    """Load the teacher of one run or model folder with the student of another."""
    return speculative(load_teacher(path), load_student(draft))
