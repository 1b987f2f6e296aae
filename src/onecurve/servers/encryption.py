"""TLS between ranks and row servers: each side shows a certificate of the same authority.

A folder has `ca.pem`, the certificate of the authority, and `cert.pem` and `key.pem`, those of this machine. Servers
come and go, so names in certificates are not compared: whoever has a certificate of the authority is trusted.
"""

import ssl
from pathlib import Path

from onecurve.describe.errors import OnecurveError


def server_context(folder: str) -> ssl.SSLContext | None:
    """For the side that is connected to; None without a folder."""
    return _context(folder, ssl.PROTOCOL_TLS_SERVER)


def client_context(folder: str) -> ssl.SSLContext | None:
    """For the side that connects; None without a folder."""
    return _context(folder, ssl.PROTOCOL_TLS_CLIENT)


def _context(folder: str, protocol: int) -> ssl.SSLContext | None:
    if not folder:
        return None
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # a connection on which only a ticket arrives would look as if a frame had
    path = Path(folder)
    try:
        context.load_cert_chain(path / "cert.pem", path / "key.pem")
        context.load_verify_locations(path / "ca.pem")
    except (OSError, ssl.SSLError) as error:
        raise OnecurveError(
            f"{folder}: it must have ca.pem, cert.pem and key.pem, for TLS ({error.strerror or error})"
        ) from None
    return context
