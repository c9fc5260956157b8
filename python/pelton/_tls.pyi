import asyncio
from asyncio import sslproto

class BaseSSLTransport(sslproto._SSLProtocolTransport): ...  # type: ignore[name-defined]
class BaseSSLProtocol(asyncio.BufferedProtocol): ...
