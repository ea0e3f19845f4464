"""TLS of the gRPC server."""

import grpc

from serving.engine.certificates import Certificate


def credentials(certificate: Certificate) -> grpc.ServerCredentials:
    """Show the certificate as its files have it when a client comes."""

    def fetch() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([certificate.current().pems])

    return grpc.dynamic_ssl_server_credentials(fetch(), fetch)
