"""The certificate of the server, which its files may replace while it runs."""

import dataclasses
import logging
import ssl
from pathlib import Path

from replicator.runs.errors import UserError
from serving.bundles.plain_files import stamp_of
from serving.settings import Settings

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class LoadedCertificate:
    """What the files held: the context of a server, and the key and the certificate in PEM."""

    context: ssl.SSLContext
    pems: tuple[bytes, bytes]


class Certificate:
    """A certificate and its key, as their files have them now.

    context: of a server that shows whichever there is when a client comes. Raises UserError at the
    start for files that cannot be used.
    """

    def __init__(self, certificate: Path, key: Path):
        self._paths = certificate, key
        self._seen = stamp_of(self._paths)
        self._current = self._loaded()
        self.context = self._loaded().context
        self.context.sni_callback = self._show

    def current(self) -> LoadedCertificate:
        """The one that there is now; files that cannot be used leave the one before."""
        if (stamp := stamp_of(self._paths)) != self._seen:
            self._seen = stamp
            try:
                self._current = self._loaded()
            except UserError as error:
                LOG.error("the certificate stays as it was: %s", error)
        return self._current

    def _show(self, client: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        client.context = self.current().context

    def _loaded(self) -> LoadedCertificate:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(*self._paths, password="")  # else a terminal would be asked
            certificate, key = (path.read_bytes() for path in self._paths)
        except OSError as error:  # those of ssl among them
            paths = " and ".join(map(str, self._paths))
            raise UserError(f"Cannot use {paths} for TLS: {error.strerror or error}.") from error
        return LoadedCertificate(context, (key, certificate))


def certificate_of(settings: Settings) -> Certificate | None:
    """That of the settings, None where they have none; UserError if it cannot be used."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return Certificate(settings.tls_certificate, settings.tls_key)
