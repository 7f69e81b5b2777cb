"""Certificates and keys for a federation on one machine.

A federation of machines has certificates from its own authority; see ``docs/how-to/deploy.md``.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAYS = 7


@dataclass(frozen=True)
class Certificates:
    """The files that a SuperLink with TLS needs."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    """Write an authority of a week's life and a certificate for 127.0.0.1 signed by it."""
    authority_key, server_key = _new_key(), _new_key()
    authority = _builder("fedtail local authority", authority_key.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    signed = authority.issuer_name(_name("fedtail local authority")).sign(
        authority_key, hashes.SHA384()
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    server = (
        _builder("localhost", server_key.public_key())
        .issuer_name(signed.subject)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    made = Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")
    made.authority.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    made.certificate.write_bytes(server.public_bytes(serialization.Encoding.PEM))
    _write_private(made.key, server_key, serialization.PrivateFormat.PKCS8)
    return made


def make_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a key pair that a SuperNode proves itself with; return the private and public file."""
    key = _new_key()
    private, public = folder / name, folder / f"{name}.pub"
    _write_private(private, key, serialization.PrivateFormat.OpenSSH)
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    )
    return private, public


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(common: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(common))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _write_private(
    path: Path, key: ec.EllipticCurvePrivateKey, kind: serialization.PrivateFormat
) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())
    )
