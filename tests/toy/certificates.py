"""Certificates for tests, made by the `openssl` program: an authority, a server at 127.0.0.1, a client."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Certificates:
    ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path

    def make_server_context(self, *, asks: bool = False) -> ssl.SSLContext:
        """asks: clients must show a certificate of the authority."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.ca))
        context.load_cert_chain(self.server, self.server_key)
        context.verify_mode = ssl.CERT_REQUIRED if asks else ssl.CERT_NONE
        return context

    def join_client(self) -> Path:
        """The client's certificate and key in one file."""
        path = self.client.with_suffix(".both.pem")
        path.write_text(self.client.read_text() + self.client_key.read_text())
        return path

    def list_server_options(self, port: int) -> dict[str, str]:
        """Of a redis-server that speaks TLS alone; clients need no certificate."""
        return {
            "port": "0",
            "tls-port": str(port),
            "tls-cert-file": str(self.server),
            "tls-key-file": str(self.server_key),
            "tls-ca-cert-file": str(self.ca),
            "tls-auth-clients": "no",
        }


def make_certificates(folder: Path) -> Certificates:
    ca, ca_key = folder / "ca.pem", folder / "ca.key"
    _run("req", "-x509", *_new_key(ca_key), "-out", ca, "-days", "2", "-subj", "/CN=toy authority")
    server, server_key = _make_signed(folder, "server", ca, ca_key)
    client, client_key = _make_signed(folder, "client", ca, ca_key)
    return Certificates(ca=ca, server=server, server_key=server_key, client=client, client_key=client_key)


def make_self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that no authority has signed, and its key."""
    certificate, key = folder / "self.pem", folder / "self.key"
    _run(
        *("req", "-x509", *_new_key(key), "-out", certificate, "-days", "2", "-subj", "/CN=self"),
        *("-addext", "subjectAltName=IP:127.0.0.1"),
    )
    return certificate, key


def make_expired(folder: Path, certificates: Certificates) -> tuple[Path, Path]:
    """A certificate of the authority that was good until yesterday, and its key."""
    certificate, key, request = folder / "old.pem", folder / "old.key", folder / "old.csr"
    name = ("-subj", "/CN=old", "-addext", "subjectAltName=IP:127.0.0.1")
    _run("req", *_new_key(key), "-out", request, *name)
    authority = ("-CA", certificates.ca, "-CAkey", certificates.ca.with_suffix(".key"), "-CAcreateserial")
    signing = ("x509", "-req", "-in", request, *authority, "-copy_extensions", "copy")
    _run(*signing, "-days", "-1", "-out", certificate)
    return certificate, key


def _make_signed(folder: Path, name: str, ca: Path, ca_key: Path) -> tuple[Path, Path]:
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    _run(
        *("req", "-x509", *_new_key(key), "-out", certificate, "-days", "2", "-subj", f"/CN={name}"),
        *("-CA", ca, "-CAkey", ca_key, "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
        *("-addext", "basicConstraints=critical,CA:FALSE"),
    )
    return certificate, key


def _new_key(path: Path) -> tuple[str | Path, ...]:
    # Elliptic curves: made in a moment.
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path)


def _run(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
