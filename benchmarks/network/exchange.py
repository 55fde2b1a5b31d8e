"""Run a reducer or a worker inside a host. Reducers and workers sum vectors like Vertex AI's Reduction Server.

    python exchange.py reducer NUMBER REDUCERS WORKERS LENGTH REPETITIONS
    python exchange.py worker RANK WORKERS LENGTH REPETITIONS ADDRESS...

The vector is split into one part per reducer, and each part is split into chunks. A worker receives the sums of early
chunks while the worker sends later chunks, so that a card sends and receives simultaneously. All processes know the
order of the chunks, so messages don't have headers.
"""

import functools
import socket
import sys

import numpy as np
from worker import Vector, work

PORT = 29500
CHUNK = 8192  # numbers; 32 KiB
# The number of chunks that a worker sends to a reducer before receiving the sum of an earlier chunk. One chunk keeps
# all cards busy. With many more chunks, workers fill the queues before each other's chunks, which takes up to 50 %
# longer.
AHEAD = 1


def chunks(length: int, parts: int, part: int) -> list[slice]:
    """Return the chunks of one part of a vector."""
    start, stop = length * part // parts, length * (part + 1) // parts
    return [slice(first, min(first + CHUNK, stop)) for first in range(start, stop, CHUNK)]


def receive(peer: socket.socket, into: Vector) -> None:
    """Fill the array with received data. Raises ConnectionError if the peer closed the connection."""
    if peer.recv_into(into.data, into.nbytes, socket.MSG_WAITALL) < into.nbytes:
        raise ConnectionError("the peer closed the connection")


def add(reducers: list[socket.socket], mine: Vector) -> None:
    """Replace the vector with the sum. In each turn, send a chunk to every reducer and receive an earlier sum."""
    parts = [chunks(len(mine), len(reducers), number) for number in range(len(reducers))]
    for turn in range(max(map(len, parts)) + AHEAD):
        for reducer, part in zip(reducers, parts, strict=True):
            if turn < len(part):
                reducer.sendall(mine[part[turn]].data)
        for reducer, part in zip(reducers, parts, strict=True):
            if 0 <= turn - AHEAD < len(part):
                receive(reducer, mine[part[turn - AHEAD]])


def reduce(workers: list[socket.socket], part: list[slice]) -> None:
    """All-reduce a part of the vector: receive each chunk from all workers, and send the sum to all workers."""
    for chunk in part:
        total = np.zeros(chunk.stop - chunk.start, np.float32)
        one = np.empty_like(total)
        for worker in workers:
            receive(worker, one)
            total += one
        for worker in workers:
            worker.sendall(total.data)


def be_reducer(number: int, reducers: int, workers: int, length: int, repetitions: int) -> None:
    with socket.create_server(("", PORT)) as server:
        print("ready", flush=True)
        peers = [server.accept()[0] for _ in range(workers)]
    for peer in peers:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(repetitions):
        reduce(peers, chunks(length, reducers, number))
    for peer in peers:
        peer.recv(1)  # exit only after the workers have exited, so that their measurements aren't disturbed


def be_worker(rank: int, workers: int, length: int, repetitions: int, *addresses: str) -> None:
    peers = [socket.create_connection((address, PORT)) for address in addresses]
    for peer in peers:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    work(functools.partial(add, peers), rank, workers, length, repetitions)


if __name__ == "__main__":
    _, role, *arguments = sys.argv
    if role == "reducer":
        be_reducer(*map(int, arguments))
    else:
        rank, workers, length, repetitions = map(int, arguments[:4])
        be_worker(rank, workers, length, repetitions, *arguments[4:])
