"""FastMCP as a proxy: JWT, tool authorization, request log. Configured by BENCH_* variables."""

import os

from fastmcp.server import create_proxy
from fastmcp.server.auth.providers.jwt import JWTVerifier
from fastmcp.server.middleware.authorization import AuthMiddleware
from fastmcp.server.middleware.logging import LoggingMiddleware
from fastmcp.server.providers.proxy import FastMCPProxy, ProxyClient
from fastmcp.utilities.authorization import require_scopes

env = os.environ
settings = {
    "name": "bench",
    "auth": JWTVerifier(
        public_key=env["BENCH_PUBLIC_KEY"],
        issuer=env["BENCH_ISSUER"],
        audience=env["BENCH_AUDIENCE"],
        algorithm="ES256",
    ),
    "middleware": [AuthMiddleware(auth=require_scopes(env["BENCH_SCOPE"])), LoggingMiddleware()],
}
upstream = env["BENCH_UPSTREAM"]

if env["BENCH_SHARED"] == "true":
    # One client for everybody, connected once: no other way spares the proxy an initialization with each call.
    client = ProxyClient(upstream)

    async def shared():
        if not client.is_connected():
            await client.__aenter__()
        return client

    proxy = FastMCPProxy(client_factory=shared, **settings)
else:
    proxy = create_proxy(upstream, **settings)

proxy.run(transport="http", host="127.0.0.1", port=int(env["BENCH_PORT"]), show_banner=False)
