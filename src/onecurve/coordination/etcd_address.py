"""Where etcd is and how to authenticate there."""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from onecurve.coordination.errors import CoordinationError

_DEFAULT_PORT = 2379
_USER, _CA, _CERTIFICATE, _PRIVATE_KEY = "ETCDCTL_USER", "ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY"


@dataclass(frozen=True)
class EtcdAddress:
    """The members of an etcd cluster, with the credentials for it.

    Credentials come from the environment, in the variables that etcd's own command line uses: ETCDCTL_USER
    (`name:password`), ETCDCTL_CACERT, ETCDCTL_CERT and ETCDCTL_KEY (files for TLS). They are never printed.
    """

    endpoints: tuple[tuple[str, int], ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str, environment: Mapping[str, str] = os.environ) -> "EtcdAddress":
        """Read `etcd://HOST:PORT,HOST:PORT…`, or `etcds://…` for TLS."""
        scheme, separator, rest = url.partition("://")
        if scheme not in ("etcd", "etcds") or not separator:
            raise CoordinationError(
                "an address of etcd has the form etcd://HOST:PORT,… or, with TLS, etcds://HOST:PORT,…"
            )
        if "@" in rest:
            raise CoordinationError(
                f"{scheme}://…@{rest.rpartition('@')[2]}: a password in an address is visible to other users "
                f"of the host; set {_USER}=name:password in the environment instead"
            )
        user, _, password = environment.get(_USER, "").partition(":")
        return cls(
            endpoints=tuple(_endpoint(text, url) for text in rest.rstrip("/").split(",")),
            user=user or None,
            password=password or None,
            tls=_tls(environment) if scheme == "etcds" else None,
        )

    def __str__(self) -> str:
        scheme = "etcd" if self.tls is None else "etcds"
        return f"{scheme}://{','.join(f'{host}:{port}' for host, port in self.endpoints)}"


def _endpoint(text: str, url: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(_DEFAULT_PORT)
    if not host or not port.isdigit():
        raise CoordinationError(f"{url}: {text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _tls(environment: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=environment.get(_CA))
        if _CERTIFICATE in environment:
            context.load_cert_chain(environment[_CERTIFICATE], environment.get(_PRIVATE_KEY))
    except OSError as error:  # ssl.SSLError is one
        raise CoordinationError(f"{_CA}, {_CERTIFICATE} or {_PRIVATE_KEY} cannot be read: {error}") from None
    return context
