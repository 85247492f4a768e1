"""A server that forks its workers before it accepts, and its client: `prefork.py serve PORT`, `prefork.py call PORT`.

Every worker accepts from the one listening socket, and echoes. The client compares what comes back.
"""

import ctypes
import os
import random
import signal
import socket
import sys
import threading

WORKERS = 3
CONNECTIONS = 24
BYTES = 200_000
ADDRESS = "127.0.0.1"
PR_SET_PDEATHSIG = 1


def work(listener):
    # The server may be killed.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    while True:
        stream, _ = listener.accept()
        with stream:
            while data := stream.recv(65536):
                stream.sendall(data)


def serve(port):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    with socket.create_server((ADDRESS, port), backlog=64) as listener:
        for _ in range(WORKERS):
            if os.fork() == 0:
                work(listener)
        signal.pause()


def call(port, seed, results):
    data = random.Random(seed).randbytes(BYTES)
    with socket.create_connection((ADDRESS, port), timeout=60) as stream:
        sender = threading.Thread(target=lambda: (stream.sendall(data), stream.shutdown(socket.SHUT_WR)))
        sender.start()
        got = bytearray()
        while piece := stream.recv(65536):
            got += piece
        sender.join()
    results.append(bytes(got) == data)


def main():
    role, port = sys.argv[1], int(sys.argv[2])
    if role == "serve":
        return serve(port)
    results = []
    for first in range(0, CONNECTIONS, 4):
        callers = [threading.Thread(target=call, args=(port, first + each, results)) for each in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    if results != [True] * CONNECTIONS:
        sys.exit(f"the data are wrong: {results}")
    print("the data are right")


main()
