"""The settings of `onepass serve`: addresses and limits."""

import dataclasses
import re
from pathlib import Path
from typing import Annotated, Literal

from onepass.foundation.model_folders import is_loopback
from onepass.foundation.rules import Checked, Count, Natural, NonNegative, Range, UserError, require

# The packages that the extra `serve` installs and that serving requires.
NEEDED = (
    *("starlette", "grpc", "grpc_health", "grpc_reflection", "h11", "orjson"),
    *("prometheus_client", "pydantic", "uvicorn"),
)
MIB = 2**20
ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
DEFAULT_PORTS = ("http", ":80"), ("https", ":443")  # which browsers leave out


@dataclasses.dataclass(frozen=True)
class Settings(Checked):
    """Addresses, authentication and limits of a server."""

    host: str = "127.0.0.1"
    """Address to listen on, for HTTP and gRPC. Any address but loopback requires a token."""
    port: Natural = 8501
    """HTTP port; 0: any free port, which the server prints when it is ready."""
    grpc_port: Annotated[int, Range(-1)] = 8500
    """gRPC port; 0: any free port; -1: no gRPC."""
    probe_port: Annotated[int, Range(-1)] = -1
    """Port that serves only `/healthz`, `/readyz` and the metrics, without a token; 0: any free
    port; -1: none."""
    token_file: Path | None = None
    """File with the token that every request must have, or with several, one per line, for clients
    that share the server fairly. None: the environment variable ONEPASS_TOKEN; if it is not set, no
    token is required."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that requests may use, in addition to the address and localhost. Pages on these
    hosts may send requests even if a proxy changes the `Host` header."""
    allow_origin: tuple[str, ...] = ()
    """Origins, such as https://site.example, whose pages may send requests and read the answers.
    Each is compared as a whole, so there is no `*`. A token is still required."""
    max_body_mib: Annotated[float, Range(0.001)] = 16.0
    """Largest request body and largest gRPC message, in MiB."""
    max_rows: Count = 64
    """Largest batch of one request; it is split if the model's limit is lower."""
    queue_rows: Count = 256
    """Number of rows that may wait for each model, and 1/8 more for clients that have few in the
    queue; further requests get status 503."""
    queue_mib: Annotated[float, Range(0.001)] = 256.0
    """Total size of the inputs that may wait for each model, in MiB."""
    prefix_mib: NonNegative = 256.0
    """Memory for the states after the latest prefixes of all models, in MiB, so that what continues
    one of them does not read it again; 0: every request reads its prefix."""
    batch_delay_ms: NonNegative = 1.0
    """Longest time, in milliseconds, that a batch waits for more rows while requests are
    concurrent."""
    threads: Count = 1
    """Number of concurrent calls of each model; one more may run if its rows take over a second."""
    timeout_seconds: Annotated[float, Range(0.001)] = 60.0
    """Time limit of a request, in seconds; a client may ask for a shorter one."""
    max_streams: Count = 16
    """Number of concurrent streams of each model, in a sandbox at most 247 minus `threads`; one
    client can have half of them. Further requests get status 503."""
    poll_seconds: Annotated[float, Range(0.01)] = 1.0
    """Time between two scans of the folder of models, in seconds."""
    load_seconds: Annotated[float, Range(0.001)] = 600.0
    """Time limit for loading and warming a version, in seconds; other versions load meanwhile."""
    sandbox: bool = True
    """Load and run each model in its own process, which can neither write files nor access a
    network (Linux, CPU only)."""
    trust: tuple[str, ...] = ()
    """PEM files with public ed25519 keys. Bundles signed with a matching private key (`onepass
    export --sign`) run in the server's process; with --no-sandbox, no others are loaded."""
    sandbox_memory_gib: Annotated[float, Range(0.001)] = 4.0
    """Memory limit of each sandbox process, in GiB."""
    call_seconds: Annotated[float, Range(0.001)] = 600.0
    """Time limit of a call in a sandbox, in seconds; a process that hangs is restarted."""
    drain_seconds: NonNegative = 30.0
    """Time to answer accepted requests after SIGTERM or Ctrl-C, in seconds."""
    backend: Literal["auto", "tensorflow", "numba", "numba-bfloat16"] = "auto"
    """Backend of speech models; auto: numba for students if there is no GPU. numba-bfloat16, for
    students on processors with AVX512-BF16, is faster and changes the audio slightly."""
    weights: Literal["float32", "bfloat16", "int8"] = "float32"
    """Type in which the step machine keeps large weights of all models: fewer bytes are read
    sooner, and the answers are those of a slightly different model. Only sequences of your own
    models can be served with another type than float32; other models are not loaded then."""
    log_format: Literal["text", "json"] = "text"
    """Format of the log, on stderr."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level of the log; info includes one line per request."""

    def __post_init__(self) -> None:
        super().__post_init__()
        ports: dict[int, str] = {}
        for name in ("port", "grpc_port", "probe_port"):
            value = getattr(self, name)
            require(value <= 65535, name, "at most 65535", value)
            if value > 0 and value in ports:
                raise UserError(f"`{ports[value]}` and `{name}` must differ, both are {value}.")
            ports[value] = name
        rule = "exact origins as browsers send them, such as https://site.example"
        for origin in self.allow_origin:
            usual = any(origin.startswith(f"{s}:") and origin.endswith(p) for s, p in DEFAULT_PORTS)
            is_exact = ORIGIN.fullmatch(origin) is not None and not usual
            require(is_exact, "allow_origin", rule, repr(origin))

    @property
    def max_body_bytes(self) -> int:
        """`max_body_mib` in bytes."""
        return int(self.max_body_mib * MIB)

    @property
    def queue_bytes(self) -> int:
        """`queue_mib` in bytes."""
        return int(self.queue_mib * MIB)

    @property
    def prefix_bytes(self) -> int:
        """`prefix_mib` in bytes."""
        return int(self.prefix_mib * MIB)

    @property
    def is_loopback(self) -> bool:
        """True if `host` can be reached only from this machine."""
        return is_loopback(self.host)
