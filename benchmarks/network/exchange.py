"""A reducer, and a worker that sums by reducers, as Vertex AI's Reduction Server does. Runs inside a host.

    python exchange.py reducer NUMBER REDUCERS WORKERS LENGTH REPETITIONS
    python exchange.py worker RANK WORKERS LENGTH REPETITIONS ADDRESS...

The vector is cut into a part for each reducer, and a part into chunks, so that sums return while later chunks are still
on their way: a card sends and receives at once. Who sends what is known to all, so there are no headers.
"""

import functools
import socket
import sys

import numpy as np
from worker import Vector, work

PORT = 29500
CHUNK = 8192  # numbers; 32 KiB
# So many chunks a worker sends to a reducer beyond the one whose sum it waits for. It is enough that all cards always
# have work; with many more, workers drift apart and fill the queues for each other's chunks, which takes up to half
# as long again.
AHEAD = 1


def chunks(length: int, parts: int, part: int) -> list[slice]:
    """The chunks of one part of a vector."""
    start, stop = length * part // parts, length * (part + 1) // parts
    return [slice(first, min(first + CHUNK, stop)) for first in range(start, stop, CHUNK)]


def receive(peer: socket.socket, into: Vector) -> None:
    """Fills the array; raises ConnectionError when the peer has gone."""
    if peer.recv_into(into.data, into.nbytes, socket.MSG_WAITALL) < into.nbytes:
        raise ConnectionError("the other side has closed the connection")


def add(reducers: list[socket.socket], mine: Vector) -> None:
    """Puts the sum in the vector's place. In each turn a chunk goes to every reducer, and an earlier one comes back."""
    parts = [chunks(len(mine), len(reducers), number) for number in range(len(reducers))]
    for turn in range(max(map(len, parts)) + AHEAD):
        for reducer, part in zip(reducers, parts, strict=True):
            if turn < len(part):
                reducer.sendall(mine[part[turn]].data)
        for reducer, part in zip(reducers, parts, strict=True):
            if 0 <= turn - AHEAD < len(part):
                receive(reducer, mine[part[turn - AHEAD]])


def reduce(workers: list[socket.socket], part: list[slice]) -> None:
    """One all-reduce of a part: receives each chunk from all workers, and sends its sum to all."""
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
        peer.recv(1)  # not to disturb the others, end when they have ended


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
