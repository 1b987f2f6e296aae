"""Coordination through etcd v3."""

import asyncio
import math
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from onecurve.coordination.coordination import TIMEOUT_SECONDS
from onecurve.coordination.entry import Entry, check_entry, check_key, check_prefix
from onecurve.coordination.errors import LeaseLostError
from onecurve.coordination.etcd_address import EtcdAddress
from onecurve.coordination.etcd_entry import EtcdEntry, encode, encode_value
from onecurve.coordination.etcd_gateway import FAILED_PRECONDITION, NOT_FOUND, EtcdError, EtcdGateway
from onecurve.coordination.etcd_watcher import EtcdWatcher
from onecurve.coordination.lease import Lease, lease_number
from onecurve.coordination.watch import Watch

_SHORTEST_LEASE_SECONDS = 2
_THREADS = 8
_RENEWING_THREADS = 2


class EtcdCoordination:
    """Coordination through an etcd cluster, under the keys that begin with `/onecurve/NAME/`.

    The values are protected by etcd alone (TLS, password); the job's key plays no part here. Every write is a
    transaction that compares the key's revision and stores a token: an attempt that etcd carries out late, after the
    answer to a repeated one, changes nothing, and a repeated one recognizes its own token. One exception: if a key is
    created and soon deleted, a late attempt may create it again. Give such a key a lease.
    """

    def __init__(self, address: EtcdAddress, name: str, timeout: float = TIMEOUT_SECONDS) -> None:
        check_key(name)
        self._gateway = EtcdGateway(address, timeout)
        self._namespace, self._timeout = f"/onecurve/{name}/", timeout
        self._executor = ThreadPoolExecutor(_THREADS, "etcd")
        # Renewals must not wait behind thousands of writes.
        self._renewing = ThreadPoolExecutor(_RENEWING_THREADS, "etcd lease")
        self._leases: set[Lease] = set()
        self._watches: set[Watch] = set()

    @property
    def received_bytes(self) -> int:
        """Bytes received from etcd, without the headers of HTTP."""
        return self._gateway.received_bytes

    async def lease(self, seconds: float) -> Lease:
        number = secrets.randbits(62) + 1
        lease_id = {"ID": str(number)}

        async def renew() -> bool:
            answer = await self._call("/v3/lease/keepalive", lease_id, self._renewing, granted)
            return int(answer["result"].get("TTL", 0)) > 0

        async def revoke() -> None:
            try:
                await self._call("/v3/lease/revoke", lease_id)
            except EtcdError as error:
                if error.code != NOT_FOUND:
                    raise

        granted_at = asyncio.get_running_loop().time()
        granted = await self._grant(lease_id, max(math.ceil(seconds), _SHORTEST_LEASE_SECONDS))
        lease = Lease(number, granted, granted_at, renew, revoke)
        self._leases.add(lease)
        return lease

    async def create(self, key: str, value: str, lease: Lease | None = None) -> bool:
        check_entry(key, value)
        token = _token()
        done, present = await self._write(key, 0, value, token, {"lease": str(lease_number(lease) or 0)})
        return done or (present is not None and present.token == token)

    async def put(self, key: str, value: str, lease: Lease | None = None) -> None:
        check_entry(key, value)
        token, version = _token(), 0
        while True:
            done, present = await self._write(key, version, value, token, {"lease": str(lease_number(lease) or 0)})
            if done or (present is not None and present.token == token):
                return
            version = present.version if present is not None else 0

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        answer = await self._call("/v3/kv/range", {"key": self._encoded(key)})
        present = _first(answer)
        return Entry(present.value, present.version) if present is not None else None

    async def compare_and_set(self, key: str, version: int, value: str) -> bool:
        check_entry(key, value)
        if version < 1:
            return False  # etcd would take 0 for "absent"
        token = _token()
        done, present = await self._write(key, version, value, token, {"ignore_lease": True})
        return done or (present is not None and present.token == token)

    async def delete(self, key: str) -> bool:
        existed = False
        while (entry := await self.get(key)) is not None:
            existed = True
            operation = {"request_delete_range": {"key": self._encoded(key)}}
            if (await self._transact(key, entry.version, operation))[0]:
                break
        return existed

    async def watch(self, prefix: str) -> Watch:
        check_prefix(prefix)

        def end() -> None:
            self._watches.discard(watch)
            watcher.close()

        watch = Watch(prefix, end)
        self._watches.add(watch)
        watcher = EtcdWatcher(self._gateway, self._namespace, watch, self._timeout)
        watcher.start()
        return watch

    async def close(self) -> None:
        for watch in [*self._watches]:
            watch.close()
        for lease in self._leases:
            await lease.abandon()
        self._gateway.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._renewing.shutdown(wait=False, cancel_futures=True)

    async def _grant(self, lease_id: Mapping[str, str], seconds: int) -> float:
        try:
            return float((await self._call("/v3/lease/grant", {**lease_id, "TTL": str(seconds)}))["TTL"])
        except EtcdError as error:
            if error.code != FAILED_PRECONDITION:  # the lease exists: an earlier attempt was carried out
                raise
            return float(seconds)

    async def _write(
        self, key: str, version: int, value: str, token: str, fields: Mapping[str, Any]
    ) -> tuple[bool, EtcdEntry | None]:
        put = {"key": self._encoded(key), "value": encode_value(value, token), **fields}
        try:
            return await self._transact(key, version, {"request_put": put})
        except EtcdError as error:
            if error.code == NOT_FOUND:
                raise LeaseLostError(f"key {key!r} was not written: its lease has expired") from None
            raise

    async def _transact(self, key: str, version: int, operation: Mapping[str, Any]) -> tuple[bool, EtcdEntry | None]:
        """Carry out an operation if the key has this version (0: is absent); otherwise return what the key holds."""
        compare = {"key": self._encoded(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(version)}
        read = {"request_range": {"key": self._encoded(key)}}
        answer = await self._call("/v3/kv/txn", {"compare": [compare], "success": [operation], "failure": [read]})
        if answer.get("succeeded"):
            return True, None
        return False, _first(answer["responses"][0]["response_range"])

    async def _call(
        self,
        path: str,
        body: Mapping[str, Any],
        executor: ThreadPoolExecutor | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(executor or self._executor, self._gateway.call, path, body, timeout)

    def _encoded(self, key: str) -> str:
        return encode(self._namespace + key)


def _first(answer: Mapping[str, Any]) -> EtcdEntry | None:
    return EtcdEntry.decode(answer["kvs"][0]) if answer.get("kvs") else None


def _token() -> str:
    return secrets.token_hex(8)
