"""The client of `onepass serve`, over HTTP or gRPC, which does not need TensorFlow."""

import contextlib
import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onepass.bundles.errors import InvalidInput
from onepass.bundles.manifest import name_problem
from onepass.bundles.signature import PLAIN, Arrays, TensorInfo, checked_seeds
from onepass.foundation.model_folders import check_address, is_loopback
from onepass.foundation.rules import UserError, check_seed, whole_number
from serving.client import calls

if TYPE_CHECKING:
    from serving.client.grpc_transport import GrpcTransport
    from serving.client.http_transport import HttpTransport

TIMEOUT_SECONDS = 60.0
RETRIES = 4


class Client(contextlib.AbstractContextManager["Client"]):
    """A client of the models on one server.

    Connections to other machines use the proxies in environment variables (HTTPS_PROXY, HTTP_PROXY,
    NO_PROXY); connections to this machine are direct. A failed request raises ClientError, a
    UserError with a one-line message.

    Args:
      address: http://HOST:PORT or grpc://HOST:PORT or, with TLS, https:// or grpcs://; of HTTP also
        with the path under which a proxy has the server, http://HOST:PORT/PATH.
      token: token that the server requires.
      timeout_seconds: time limit of each call until the end of its response, including retries and
        pauses; every method has an argument that overrides it.
      retries: number of attempts after the first, with growing pauses, if the server is
        unreachable, is overloaded (503) or limits this client (429). They are harmless: an output
        depends only on seed and inputs. A stream that has begun is not retried.
      authorities: PEM file of the authorities' certificates for verifying the server; None: those
        that the HTTP or gRPC library trusts.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        retries: int = RETRIES,
        authorities: Path | None = None,
    ):
        scheme, server = check_address(address)
        if token is not None and not (token.isascii() and token.isprintable() and token):
            raise UserError("`token` must be printable ASCII characters.")
        self._seconds, retrying = timeout_seconds, calls.Retrying(retries)
        calls.Deadline(timeout_seconds)
        self._transport = _transport(scheme, server, token, retrying, authorities)

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def models(self, *, timeout_seconds: float | None = None) -> list[dict[str, Any]]:
        """Return descriptions of the models: `id` and, for models that are ready, more facts."""
        return self._transport.models(self._deadline(timeout_seconds))

    def spec(self, name: str, *, timeout_seconds: float | None = None) -> dict[str, Any]:
        """Return the description of one model, as in `models`."""
        with self._check_name(name):
            return self._transport.spec(name, self._deadline(timeout_seconds))

    def examples(self, name: str, *, timeout_seconds: float | None = None) -> list[dict[str, Any]]:
        """Return the server's example recordings (`name`, `text`, `seconds`); HTTP only."""
        with self._check_name(name):
            return self._transport.examples(name, self._deadline(timeout_seconds))

    def signatures(
        self, name: str, version: int | None = None, *, timeout_seconds: float | None = None
    ) -> dict[str, dict[str, TensorInfo]]:
        """Return the inputs of each signature of a model, by the names of signature and input."""
        with self._check_name(name):
            return self._transport.signatures(name, version, self._deadline(timeout_seconds))

    def predict(
        self,
        name: str,
        inputs: Mapping[str, Any],
        signature: str = PLAIN,
        version: int | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> Arrays:
        """Return the outputs of one of a model's signatures, as arrays.

        Args:
          inputs: values of the inputs by name; the first axis is the batch axis. NumPy arrays are
            sent unchanged; other values are converted to the signature's types.
          version: version of the model; None: the current version.
        """
        deadline = self._deadline(timeout_seconds)
        with self._check_name(name):
            arrays = dict(inputs)
            if not all(isinstance(value, np.ndarray) for value in inputs.values()):
                known = self._transport.signatures(name, version, deadline).get(signature, {})
                arrays = {key: _array(key, value, known) for key, value in inputs.items()}
            return self._transport.predict(name, arrays, signature, version, deadline)

    def speak(
        self,
        name: str,
        *,
        frames: np.ndarray | None = None,
        recording: str | Path | bytes | None = None,
        example: str | None = None,
        text: str | None = None,
        phonemes: str | None = None,
        pronunciations: Mapping[str, str] | None = None,
        seed: int = 0,
        row: int = 0,
        seconds: float | None = None,
        speaker: str | None = None,
        temperature: float | None = None,
        force: bool = False,
        timeout_seconds: float | None = None,
    ) -> calls.Speech:
        """Return speech as the server generates it: an iterator over chunks float32 [samples].

        Args:
          frames: float [frames, channels] to speak.
          recording: path or bytes of a WAV or FLAC file to resynthesise at its level; HTTP only,
            like all that follow up to `pronunciations`.
          example: name of one of the server's example recordings.
          text: text to speak, if the server has a text front end.
          phonemes: IPA as espeak-ng writes it, in place of `text`.
          pronunciations: IPA of words of the text, by word.
          row: row of the seed.
          seconds: largest duration of the audio; None: that of the input, or the server's default
            for an unconditional model.
          speaker: name of the speaker, for a model with speakers; None: the first speaker.
          temperature: factor of the noise; None: the model's default, or 1.
          force: whether to accept frames that are unlike the training data.
        """
        given: dict[str, Any] = {"seed": check_seed(seed), "row": whole_number(row, "row", 0)}
        if frames is not None:
            given["frames"] = _as_array("frames", frames, np.float32)
        if recording is not None:
            given["recording"] = _read(recording)
        for key, value in (("seconds", seconds), ("temperature", temperature)):
            given[key] = None if value is None else _numbers(key, value)
        given |= {"example": example, "text": text, "speaker": speaker, "phonemes": phonemes}
        given["pronunciations"] = None if pronunciations is None else dict(pronunciations)
        given["force"] = force or None
        arguments = {key: value for key, value in given.items() if value is not None}
        calls.check_numbers(arguments)
        with self._check_name(name):
            return self._transport.speak(name, arguments, self._deadline(timeout_seconds))

    def draw(
        self,
        name: str,
        *,
        label: str | int | None = None,
        caption: str | None = None,
        map: Sequence[Sequence[int]] | np.ndarray | None = None,
        num: int = 1,
        seed: int = 0,
        temperature: float | Sequence[float] = 1.0,
        guidance: float = 0.0,
        timeout_seconds: float | None = None,
    ) -> calls.Stream[calls.ImageScale]:
        """Return images as the server draws them: an iterator over the scales of each image.

        Args:
          label: class of the images (name or index), for a model that needs a class.
          caption: text of the images, for a model that needs a caption; HTTP only.
          map: labels of the pixels, int [side, side], for a model that needs a map.
          num: number of images, from rows 0, 1, ... of the seed.
          temperature: temperature of all scales, or one per scale, smallest first.
          guidance: weight, at least 0, by which images move away from the unconditional
            distribution; 0: the model's own density.
        """
        given: dict[str, Any] = {"num": whole_number(num, "num"), "seed": check_seed(seed)}
        if label is not None and not isinstance(label, str):
            label = whole_number(label, "label", 0)
        given["temperature"] = _numbers("temperature", temperature)
        given["guidance"] = _numbers("guidance", guidance) if guidance else None
        labels = None if map is None else _as_array("map", map, np.int64).tolist()
        given |= {"class": label, "caption": caption, "map": labels}
        arguments = {key: value for key, value in given.items() if value is not None}
        calls.check_numbers(arguments)
        with self._check_name(name):
            return self._transport.draw(name, arguments, self._deadline(timeout_seconds))

    def _deadline(self, seconds: float | None) -> calls.Deadline:
        return calls.Deadline(self._seconds if seconds is None else seconds)

    @contextlib.contextmanager
    def _check_name(self, name: str) -> Iterator[None]:
        if problem := name_problem(name):
            raise UserError(f"`name` {problem}.")
        try:
            yield
        except calls.ClientError as error:
            if error.code != "not_found":
                raise
            known: list[str] = []
            with contextlib.suppress(calls.ClientError):
                known = [model["id"] for model in self.models(timeout_seconds=5.0)]
            if not known or name in known:
                raise
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(known)}."
            raise calls.ClientError(f"There is no model `{name}`; {hint}", error.code) from None


def server_and_name(url: str) -> tuple[str, str]:
    """Split SCHEME://HOST:PORT/NAME into the server's address, with any path, and the name."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    server, _, name = rest.rstrip("/").rpartition("/")
    rule = f"The model must be {scheme}://HOST:PORT/NAME, got {url}"
    if not server or (scheme.startswith("grpc") and "/" in server):
        raise UserError(f"{rule}.")
    if problem := name_problem(name):
        raise UserError(f"{rule}: a name {problem}.")
    return f"{scheme}://{server}", name


def _transport(
    scheme: str, server: str, token: str | None, retrying: calls.Retrying, authorities: Path | None
) -> "GrpcTransport | HttpTransport":
    transport: Any
    try:
        if scheme.startswith("grpc"):
            from serving.client.grpc_transport import GrpcTransport

            transport = GrpcTransport
        else:
            from serving.client.http_transport import HttpTransport

            transport = HttpTransport
    except ImportError as error:
        raise UserError(
            f"A client over {scheme} needs the package {error.name}: pip install onepass[client]."
        ) from error
    trusted = None if authorities is None else _read(authorities)
    host = server.partition("/")[0]
    host = host.rpartition(":")[0] if host[-1].isdecimal() and ":" in host else host
    return transport(f"{scheme}://{server}", token, retrying, not is_loopback(host), trusted)


def _array(name: str, value: Any, known: Mapping[str, TensorInfo]) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    if name == "seed":
        try:
            return checked_seeds(value)
        except InvalidInput as error:
            raise calls.ClientError(str(error), error.code) from error
    return _as_array(name, value, known[name].dtype if name in known else None)


def _as_array(name: str, value: Any, dtype: Any) -> np.ndarray:
    try:
        return np.asarray(value, dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise calls.ClientError(
            f"`{name}` must be rectangular, of {np.dtype(dtype) if dtype else 'numbers'}.",
            "invalid_input",
        ) from error


def _numbers(name: str, value: Any) -> Any:
    return _as_array(name, value, np.float64).tolist()


def _read(recording: str | Path | bytes) -> bytes:
    if isinstance(recording, bytes):
        return recording
    try:
        return Path(recording).read_bytes()
    except OSError as error:
        raise UserError(f"Cannot read {recording}: {error.strerror}.") from error
