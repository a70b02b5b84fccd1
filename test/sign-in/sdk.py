"""A program of the Python SDK that knows only the address of an endpoint: sdk.py <address>. It prints a line of JSON for each step."""

import asyncio
import json
import sys
import time
import webbrowser
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata

address = sys.argv[1]


class Memory:
    def __init__(self):
        self.tokens = None
        self.client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client_info):
        self.client = client_info


def say(step, **found):
    print(json.dumps({"step": step, **found}), flush=True)


async def use(auth, step):
    async with httpx2.AsyncClient(auth=auth, timeout=60) as http:
        async with Client(streamable_http_client(address, http_client=http)) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            result = await client.call_tool(tools[0], {"message": step})
            say(step, tools=tools, text=result.content[0].text)


async def main():
    returned = asyncio.get_running_loop().create_future()

    async def answer(reader, writer):
        path = (await reader.readline()).split()[1].decode()
        page = b"Back at the program"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(page) + page)
        await writer.drain()
        writer.close()
        if path.startswith("/callback") and not returned.done():
            returned.set_result(parse_qs(urlsplit(path).query))

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    opened = 0

    async def open_browser(url):
        nonlocal opened
        opened += 1
        webbrowser.open(url)

    async def wait():
        found = await asyncio.wait_for(returned, 100)
        return AuthorizationCodeResult(code=found["code"][0], state=found["state"][0], iss=found["iss"][0])

    metadata = OAuthClientMetadata(client_name="Python", redirect_uris=[f"http://127.0.0.1:{port}/callback"])
    memory = Memory()
    auth = OAuthClientProvider(address, metadata, memory, open_browser, wait)
    await use(auth, "signed in")
    former = memory.tokens
    auth.context.token_expiry_time = time.time() - 1
    await use(auth, "refreshed")
    say("end", opened=opened, rotated=memory.tokens.refresh_token != former.refresh_token)


asyncio.run(main())
