"""An ordinary client: one Python process, blocking sockets with default options, a thread per connection.

    client.py PORT SIZE CONNECTIONS [tls]

connects, and prints {"connected": N}. Then, for each line {"seconds": S} on standard input, it exchanges messages for that
long, and prints {"messages": how many, "seconds": how long that took}.
"""

import json
import socket
import ssl
import sys
import threading
import time


def connect(port, tls):
    sock = socket.create_connection(("127.0.0.1", port))
    if not tls:
        return sock
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(sock)


def exchange(sock, message, end, counts):
    received = memoryview(bytearray(len(message)))
    count = 0
    while time.monotonic() < end:
        sock.sendall(message)
        got = 0
        while got < len(message):
            some = sock.recv_into(received[got:])
            if not some:
                return counts.append(None)
            got += some
        count += 1
    counts.append(count if received == message else None)


def main():
    port, size, connections = map(int, sys.argv[1:4])
    socks = [connect(port, "tls" in sys.argv[4:]) for _ in range(connections)]
    message = bytes(number * 7 % 251 for number in range(size))
    print(json.dumps({"connected": len(socks)}), flush=True)
    for line in sys.stdin:
        start = time.monotonic()
        end = start + json.loads(line)["seconds"]
        counts = []
        threads = [threading.Thread(target=exchange, args=(sock, message, end, counts)) for sock in socks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if None in counts:
            sys.exit("the echo differs from the message")
        print(json.dumps({"messages": sum(counts), "seconds": time.monotonic() - start}), flush=True)


if __name__ == "__main__":
    main()
