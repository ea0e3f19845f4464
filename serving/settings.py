"""Every limit and address of `onepass serve`."""

import dataclasses
import ipaddress
from pathlib import Path
from typing import Literal

from replicator.runs.errors import UserError
from replicator.runs.field_rules import at_least, require

# Packages of the extra `serve`, without which no server starts.
NEEDED = (
    *("starlette", "grpc", "grpc_health", "grpc_reflection", "h11", "msgspec"),
    *("orjson", "prometheus_client", "uvicorn"),
)
TOKEN_VARIABLE = "ONEPASS_TOKEN"
SCHEMES = ("http://", "https://", "grpc://", "grpcs://")  # by which a server is asked
MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Settings:
    """Addresses, authentication, and limits."""

    host: str = "127.0.0.1"
    """Address to listen on, HTTP and gRPC alike. Any but loopback needs a token."""
    port: int = 8501
    """Of HTTP; 0: any free one, which the first line names."""
    grpc_port: int = 8500
    """Of gRPC; 0: any free one; -1: no gRPC."""
    probe_port: int = -1
    """Of `/healthz`, `/readyz` and the metrics without a token, for probes alone; 0: any free one;
    -1: none."""
    token_file: Path | None = None
    """File with the token that every request must bear. None: the variable ONEPASS_TOKEN, and no
    token without it."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that requests may ask for, besides the address itself and localhost, and whose
    pages may send requests, also where a proxy passes another host on."""
    max_body_mib: float = 16.0
    """Largest body of a request and largest gRPC message, in MiB."""
    max_rows: int = 64
    """Largest batch of one request; it is split where the model's own limit is lower."""
    queue_rows: int = 256
    """Rows that may wait for each model; beyond that requests are answered 503."""
    queue_mib: float = 256.0
    """Bytes of inputs that may wait for each model, in MiB."""
    batch_delay_ms: float = 1.0
    """Milliseconds that a batch waits for more rows, only when requests come side by side."""
    threads: int = 1
    """Calls of each model at the same time."""
    timeout_seconds: float = 60.0
    """Longest time for a request, in seconds; a client may ask for less."""
    max_streams: int = 8
    """Streams of each model at the same time; beyond that requests are answered 503."""
    poll_seconds: float = 1.0
    """Seconds between two looks at the folder of models."""
    load_seconds: float = 600.0
    """Longest time to load and warm a version, in seconds; others are loaded beside it."""
    sandbox: bool = True
    """Load and run each model in a process of its own, which can neither write a file nor reach a
    network (Linux; on the processor)."""
    trust: tuple[str, ...] = ()
    """Public keys of ed25519, in PEM: what one of them has signed (`onepass export --sign`) runs in
    the server's own process; with --no-sandbox nothing else does."""
    sandbox_memory_gib: float = 4.0
    """Most memory of each of these processes, in GiB."""
    call_seconds: float = 600.0
    """Longest time of a call there, in seconds; a process that hangs is ended and started again."""
    drain_seconds: float = 30.0
    """Seconds that accepted requests have to be answered after SIGTERM or Ctrl-C."""
    backend: Literal["auto", "tensorflow", "numba"] = "auto"
    """What a student runs on; auto: numba where there is no accelerator."""
    log_format: Literal["text", "json"] = "text"
    """Of the log, on stderr."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level of the log; info has a line a request."""

    def __post_init__(self):
        at_least(self, 0, "port", "batch_delay_ms", "drain_seconds")
        at_least(self, -1, "grpc_port", "probe_port")
        at_least(self, 1, "max_rows", "queue_rows", "threads", "max_streams")
        at_least(self, 0.001, "max_body_mib", "queue_mib", "sandbox_memory_gib")
        at_least(self, 0.001, "timeout_seconds", "load_seconds", "call_seconds")
        at_least(self, 0.01, "poll_seconds")
        ports: dict[int, str] = {}
        for name in ("port", "grpc_port", "probe_port"):
            value = getattr(self, name)
            require(value <= 65535, name, "at most 65535", value)
            if value > 0 and value in ports:
                raise UserError(f"`{ports[value]}` and `{name}` must differ, both are {value}.")
            ports[value] = name

    @property
    def max_body_bytes(self) -> int:
        """`max_body_mib` in bytes."""
        return int(self.max_body_mib * MIB)

    @property
    def queue_bytes(self) -> int:
        """`queue_mib` in bytes."""
        return int(self.queue_mib * MIB)

    @property
    def is_loopback(self) -> bool:
        """Whether nothing but this machine can reach `host`."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Return whether a name or an address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
