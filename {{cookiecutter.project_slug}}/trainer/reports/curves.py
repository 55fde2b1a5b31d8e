"""Writes TensorBoard event files."""

import itertools
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from trainer.vertex.writable import Dispensable

NUMBERS = itertools.count()  # the numbers of this process's event files


class TensorBoard:
    """A sink that writes scalars to a TensorBoard event file, with one curve per name.

    If the event file is removed, the next report creates a new one. The event file is open only while a report is
    written. TensorBoard's own EventFileWriter isn't used, because it stops after its first error.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._place = folder, Dispensable(folder)
        self._file, self._size = folder, 0  # the size of the file's complete records, in bytes
        with self._place.writing():
            folder.mkdir(parents=True, exist_ok=True)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        event = Event(wall_time=time.time(), step=step, summary=Summary(value=scalars))
        with self._place.writing():
            if not self._file.is_file():
                self._file, self._size = self._folder / event_file_name(), 0
            header = [] if self._size else [Event(wall_time=event.wall_time, file_version="brain.Event:2")]
            with self._file.open("r+b" if self._size else "wb") as file:
                file.truncate(self._size)  # a record that a full disk has truncated hides the records after it
                file.seek(self._size)
                for each in (*header, event):
                    RecordWriter(file).write(each.SerializeToString())
                size = file.tell()
            self._size = size  # only after the last byte is written


def event_file_name() -> str:
    """Return a new event filename that TensorBoard can recognize and sort."""
    return f"events.out.tfevents.{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}.{next(NUMBERS)}"
