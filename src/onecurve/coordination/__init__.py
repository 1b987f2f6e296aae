"""How the keepers of a run agree: a few small keys with leases, versions and watches, on one of two backends.

A keeper is the process that starts and watches the ranks of one host. It registers under a key that belongs to a lease
and so disappears with the host, becomes the leader by creating a key that nobody else has created, raises the number of
the generation by compare-and-set, and waits for its assignment with a watch. This package knows keys and values; it
knows nothing about hosts, ranks or plans, and never imports torch. store_server.py, the store of the ranks' process
groups, uses the same authenticated connections.

Start reading with coordination.py, the protocol that both backends satisfy. *In memory*: state.py is the state machine
without any I/O, server.py serves it to other hosts (authenticated_server.py lets them in), local.py is the client in
the server's own process, client.py the one on other hosts; channel.py authenticates what they exchange, connection.py
carries it over TCP. *etcd*: etcd.py over etcd_gateway.py. lease.py and watch.py are what a caller holds, the same for
all backends.
"""
