"""A local certificate authority for Google's hostnames. It's trusted only by replicas that this process starts."""

import ssl
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import certifi
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# The variables with the trusted authorities for Python, requests, curl, gRPC, gcloud, and Node.
BUNDLES = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"),
    *("CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", "NODE_EXTRA_CA_CERTS"),
)
VALID = timedelta(days=30)  # longer than any job runs
EARLIER = timedelta(days=1)  # in case a clock is slow


class Authority:
    """A certificate authority whose private key stays in this process's memory."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "local Vertex")])
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # for certificates and CRLs
        own = (x509.BasicConstraints(ca=True, path_length=0), True), (usage, True)
        self._certificate = self._issued(self._name, self._key.public_key(), *own)
        self._contexts: dict[str, ssl.SSLContext] = {}

    def bundle(self, environ: Mapping[str, str]) -> bytes:
        """Return, in PEM format, the certificates of this authority and of the authorities that the shell trusts."""
        shell = next((environ[name] for name in BUNDLES if Path(environ.get(name, "")).is_file()), certifi.where())
        return Path(shell).read_bytes() + b"\n" + self._certificate.public_bytes(Encoding.PEM)

    def context(self, host: str) -> ssl.SSLContext:
        """Return a server's TLS context for a host. Clients use HTTP/2 only if they require it, as gRPC does."""
        if host not in self._contexts:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.set_alpn_protocols(["http/1.1", "h2"])
            with tempfile.NamedTemporaryFile() as file:  # readable only by its owner
                file.write(self._identity(host))
                file.flush()
                context.load_cert_chain(file.name)
            self._contexts[host] = context
        return self._contexts[host]

    def _identity(self, host: str) -> bytes:
        """Return a new private key and its certificate in PEM format."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName(host)])
        leaf = x509.BasicConstraints(ca=False, path_length=None)
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        certificate = self._issued(x509.Name([]), key.public_key(), (names, True), (leaf, True), (usage, False))
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return private + certificate.public_bytes(Encoding.PEM)

    def _issued(
        self, name: x509.Name, key: ec.EllipticCurvePublicKey, *extensions: tuple[x509.ExtensionType, bool]
    ) -> x509.Certificate:
        now, issuer = datetime.now(UTC), self._key.public_key()
        builder = x509.CertificateBuilder(self._name, name, key, x509.random_serial_number())
        builder = builder.not_valid_before(now - EARLIER).not_valid_after(now + VALID)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(self._key, hashes.SHA256())
