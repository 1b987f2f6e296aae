"""A client that is closed at the moment at which the server leaves."""

import asyncio

from coordination_services import connected, serving


def test_closing_does_not_fail_if_the_connection_is_lost_meanwhile() -> None:
    async def scenario() -> None:
        async with serving() as server:
            client = await connected(server)
            assert client._connection is not None
            asyncio.get_running_loop().call_soon(client.connection_lost, client._connection)
            await client.close()

    asyncio.run(scenario())
