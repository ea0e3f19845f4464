"""PyTorch networks, untouched: their own cached samplers, and the step that onepass derives.

transformers' GPT-2 by `generate` with its cache, by a `generate` that PyTorch compiles (where there
is a compiler), and by CTranslate2 and OpenVINO GenAI, engines for such networks, with float32 and
int8 weights; r9y9/wavenet_vocoder by `incremental_forward`. "mini" is a GPT-2 of three layers of 64
channels and 256 tokens, "GPT-2" that of 124 million weights, "24x128" the WaveNet of
wavenet_vocoder's presets with ten logistics. Weights are random: the work does not depend on them.

    pip install "onepass[torch]" transformers ctranslate2
    pip install --no-deps wavenet_vocoder
    pip install openvino-genai "optimum-intel[openvino]"    # of an older transformers
"""

import functools
import importlib
import math
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import onepass
from benchmarks.report import Benchmark, Measure, Row

OURS, GENERATE, COMPILED = "derived step", "generate", "generate, compiled"
CTRANSLATE2, OPENVINO = "CTranslate2", "OpenVINO GenAI"
NARROW = ("bfloat16", "int8")
INCREMENTAL = "incremental_forward"
CONVERSION, FIRST = "conversion", "first token after it"
BATCHES = (1, 8)
# Layers, channels, heads, tokens.
SHAPES = {"mini": (3, 64, 4, 256), "GPT-2": (12, 768, 12, 50_257)}
QUICK_SHAPES = {"tiny": (1, 16, 2, 32)}
TOKENS, QUICK_TOKENS = 255, 8
POSITIONS = 1024
SAMPLES, QUICK_SAMPLES = 1600, 20
PEER_SAMPLES = 200  # of `incremental_forward`, all alike; of frames, the next whole number
MEL_BANDS = 80
SCALES, QUICK_SCALES = (4, 4, 4, 4), (2, 2)  # by which the WaveNet upsamples its frames


def benchmark(quick: bool = False) -> Benchmark:
    """Return the benchmark of PyTorch networks; `quick` has tiny ones and few elements."""
    found = Benchmark("torch")
    count = QUICK_TOKENS if quick else TOKENS
    for size, shape in (QUICK_SHAPES if quick else SHAPES).items():
        found.peer(f"transformers, {size}", functools.partial(_add_gpt, found, size, shape, count))
    for channels in (0, MEL_BANDS):
        add = functools.partial(_add_wavenet, found, channels, quick)
        found.peer(f"wavenet_vocoder, {channels} channels of condition", add)
    return found


def _add_gpt(found: Benchmark, size: str, shape: tuple[int, int, int, int], count: int) -> None:
    """Add the rows of a GPT-2: greedy tokens of either side, which must be equal."""
    torch = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    layers, width, heads, vocabulary = shape
    config = transformers.GPT2Config(
        vocab_size=vocabulary,
        n_layer=layers,
        n_embd=width,
        n_head=heads,
        n_positions=POSITIONS,
        bos_token_id=0,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    module = transformers.GPT2LMHeadModel(config).eval()
    start = time.process_time()
    network = onepass.from_torch(module, inputs=torch.zeros(1, 8, dtype=torch.int64))
    model = onepass.Autoregressive(network, onepass.likelihoods.Categorical(vocabulary), start=0)
    conversion = time.process_time() - start
    start = time.process_time()
    model.sample(1, 1, 0, temperature=0.0)
    first = time.process_time() - start
    for name, seconds in ((CONVERSION, conversion), (FIRST, first)):
        found.add(Row(name, size, 1, "processor s"), _constant(seconds))
    compiled = _compiled(torch, module, transformers, config)
    for batch in BATCHES:
        ours = functools.partial(_draw_tokens, model, batch, count)
        generate = functools.partial(_generate, torch, module, batch, count)
        peers: dict[str, Callable[[], np.ndarray]] = {GENERATE: generate}
        if compiled is not None:
            peers[COMPILED] = functools.partial(
                _generate, torch, compiled, batch, count, cache_implementation="static"
            )
        equal = float(np.mean(ours() == generate()))
        others = (*peers, f"{CTRANSLATE2}, float32", f"{OPENVINO}, float32")
        found.add(Row(OURS, size, batch, "tokens/s", others), _timed(ours, batch * count))
        for name, call in peers.items():
            found.add(Row(name, size, batch, "tokens/s"), _timed(call, batch * count))
        found.add(Row("share of equal tokens", size, batch, ""), _constant(equal))
        for weights in NARROW:
            others = (OURS, *(f"{name}, {weights}" for name in (CTRANSLATE2, OPENVINO)))
            row = Row(f"{OURS}, {weights}", size, batch, "tokens/s", others)
            narrow = functools.partial(_draw_tokens, model, batch, count, weights)
            found.add(row, _timed(narrow, batch * count))
    for name, add_peer in ((CTRANSLATE2, _add_ctranslate2), (OPENVINO, _add_openvino)):
        add = functools.partial(add_peer, found, size, module, vocabulary, count)
        found.peer(f"{name}, {size}", add)


def _add_ctranslate2(found: Benchmark, size: str, module: Any, vocabulary: int, count: int) -> None:
    """Add the rows of CTranslate2, which converts the module to a folder of its own."""
    ctranslate2: Any = importlib.import_module("ctranslate2")
    converters: Any = importlib.import_module("ctranslate2.converters.transformers")
    for weights in ("float32", "int8"):
        made = converters.GPT2Loader().get_model_spec(module)
        made.register_vocabulary([str(token) for token in range(vocabulary)])
        for name, token in (("bos", "0"), ("eos", "1"), ("unk", "2")):
            setattr(made.config, f"{name}_token", token)
        made.validate()
        made.optimize(quantization=None if weights == "float32" else weights)
        with tempfile.TemporaryDirectory() as folder:
            made.save(folder)
            engine = ctranslate2.Generator(folder, intra_threads=os.cpu_count(), inter_threads=1)
        name = f"{CTRANSLATE2}, {weights}"
        for batch in BATCHES:
            call = functools.partial(
                engine.generate_batch,
                [["0"]] * batch,
                max_length=count,
                min_length=count,
                sampling_topk=1,
                include_prompt_in_result=False,
            )
            found.add(Row(name, size, batch, "tokens/s"), _timed(call, batch * count))


def _add_openvino(found: Benchmark, size: str, module: Any, vocabulary: int, count: int) -> None:
    """Add the rows of OpenVINO GenAI, for which Optimum converts the module."""
    openvino: Any = importlib.import_module("openvino")
    genai: Any = importlib.import_module("openvino_genai")
    intel: Any = importlib.import_module("optimum.intel")
    chosen = genai.GenerationConfig()
    chosen.max_new_tokens = chosen.min_new_tokens = count
    chosen.do_sample, chosen.ignore_eos = False, True
    chosen.eos_token_id, chosen.stop_token_ids = vocabulary - 1, {vocabulary - 1}  # it needs one
    for weights in ("float32", "int8"):
        bits = None if weights == "float32" else intel.OVWeightQuantizationConfig(bits=8)
        exact = {"INFERENCE_PRECISION_HINT": "f32"} if bits is None else {}
        with tempfile.TemporaryDirectory() as source, tempfile.TemporaryDirectory() as folder:
            module.save_pretrained(source)
            made = intel.OVModelForCausalLM.from_pretrained(
                source, export=True, quantization_config=bits, load_in_8bit=False, compile=False
            )
            made.save_pretrained(folder)
            engine = genai.LLMPipeline(folder, "CPU", INFERENCE_NUM_THREADS=os.cpu_count(), **exact)
        name = f"{OPENVINO}, {weights}"
        for batch in BATCHES:
            ids, ones = (openvino.Tensor(f([batch, 1], np.int64)) for f in (np.zeros, np.ones))
            call = functools.partial(engine.generate, genai.TokenizedInputs(ids, ones), chosen)
            found.add(Row(name, size, batch, "tokens/s"), _timed(call, batch * count))


def _draw_tokens(
    model: onepass.Autoregressive, batch: int, count: int, weights: Any = "float32"
) -> np.ndarray:
    """Return the most probable tokens, int32 [batch, count]."""
    return np.asarray(model.sample(batch, count, 0, temperature=0.0, weights=weights))


def _generate(torch: Any, module: Any, batch: int, count: int, **options: Any) -> np.ndarray:
    """Return the most probable tokens by `generate`, [batch, count]."""
    prompt = torch.zeros(batch, 1, dtype=torch.long)
    with torch.inference_mode():
        tokens = module.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
            **options,
        )
    return tokens[:, 1:].numpy()


def _compiled(torch: Any, module: Any, transformers: Any, config: Any) -> Any:
    """Return a copy of a module with a compiled `forward`; None without a compiler."""
    copy = transformers.GPT2LMHeadModel(config).eval()
    copy.load_state_dict(module.state_dict())
    try:
        copy.forward = torch.compile(copy.forward)
        _generate(torch, copy, 1, 2, cache_implementation="static")
    except Exception:  # of many kinds, by what the machine lacks
        return None
    return copy


def _add_wavenet(found: Benchmark, condition_channels: int, quick: bool) -> None:
    """Add the rows of wavenet_vocoder's WaveNet, alone or with the frames of a mel spectrogram."""
    torch = importlib.import_module("torch")
    network = _wavenet(condition_channels, quick)
    hop = math.prod(QUICK_SCALES if quick else SCALES)
    inputs = torch.zeros(1, 1, 8 * hop)
    examples = {"c": torch.zeros(1, condition_channels, 8)} if condition_channels else None
    converted = onepass.from_torch(network, inputs=inputs, conditions=examples)
    distribution = onepass.likelihoods.LogisticMixture(levels=65536, components=10)
    model = onepass.Autoregressive(converted, distribution)
    size = f"{'6x32' if quick else '24x128'}{', mel' if condition_channels else ''}"
    samples = QUICK_SAMPLES if quick else SAMPLES
    for batch in BATCHES:
        condition = None
        if condition_channels:
            generator = np.random.default_rng(0)
            frames = -(-samples // hop)
            condition = generator.random([batch, frames, condition_channels], np.float32)
        ours = functools.partial(model.sample, batch, samples, 0, condition)
        row = Row(OURS, size, batch, "samples/s", (INCREMENTAL,))
        found.add(row, _timed(ours, batch * samples))
        for weights in NARROW:
            narrow = functools.partial(ours, weights=weights)
            row = Row(f"{OURS}, {weights}", size, batch, "samples/s", (OURS,))
            found.add(row, _timed(narrow, batch * samples))
        few = min(samples, PEER_SAMPLES)
        few = -(-few // hop) * hop if condition_channels else few  # whole frames
        peer = functools.partial(_incremental, torch, network, condition, batch, few, few // hop)
        found.add(Row(INCREMENTAL, size, batch, "samples/s"), _timed(peer, batch * few))


def _wavenet(condition_channels: int, quick: bool) -> Any:
    """Return wavenet_vocoder's WaveNet with random weights, as it is used for generation."""
    package: Any = importlib.import_module("wavenet_vocoder")
    layers, stacks, channels = (6, 2, 32) if quick else (24, 4, 128)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # weight_norm and backward hooks of old PyTorch
        network = package.WaveNet(
            out_channels=30,
            layers=layers,
            stacks=stacks,
            residual_channels=channels,
            gate_channels=2 * channels,
            skip_out_channels=channels,
            kernel_size=3,
            cin_channels=condition_channels or -1,
            upsample_conditional_features=bool(condition_channels),
            upsample_scales=QUICK_SCALES if quick else SCALES,
            scalar_input=True,
            use_speaker_embedding=False,
            legacy=False,
        ).eval()
        network.make_generation_fast_()
    return network


def _incremental(
    torch: Any, network: Any, condition: np.ndarray | None, batch: int, count: int, frames: int
) -> Any:
    """Draw `count` samples, of which `frames` frames are upsampled, by wavenet_vocoder's step."""
    mel = None if condition is None else torch.tensor(condition[:, :frames]).transpose(1, 2)
    first = torch.zeros(batch, 1, 1)  # which it takes the batch size from
    with torch.inference_mode():
        return network.incremental_forward(test_inputs=first, c=mel, T=count)


def _timed(call: Callable[[], Any], elements: int) -> Measure:
    """Return a measure of the elements per second of a call."""

    def measure() -> float:
        start = time.perf_counter()
        call()
        return elements / (time.perf_counter() - start)

    return measure


def _constant(value: float) -> Measure:
    return lambda: value
