"""Shares as tasks of Spark, each on a machine that holds its bytes, where the storage can tell which do.

::

    shares ──► RDD of the JVM, one share a partition, with its hosts ──► DataFrame ──► mapInArrow ──► packed rows
               (`SparkContext.makeRDD`)                                               (`packed_rows`, in Python)

A data source written in Python cannot say where its partitions should run. A partition of an RDD can, and every narrow
step behind it inherits that. The hosts of a file's blocks come from the name node: by WebHDFS, or for ``hdfs://`` from
Hadoop's client in the driver's JVM. Only the places do; the bytes are read in Python, as everywhere.

Hosts are a wish: after ``spark.locality.wait`` (3 s) Spark runs a task elsewhere. If the places cannot be had, or not
within a minute, the run goes on without them, and says so. Cost: a request to the name node a file, and some
milliseconds.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bench.lateness.engines.shares import LogShare, Share, packed_rows
from bench.lateness.logs.schemas import PACKED_SCHEMA
from bench.lateness.logs.storage import error_line, file_system

__all__ = ["Block", "hosts_of", "most_bytes", "rows_of"]

_TELL = ("hdfs", "webhdfs")
"""Schemes whose storage knows the machine of a block. An object store has no such places."""
_HOSTS_MAX = 3
_ASKING_S_MAX = 60.0
"""Seconds for all questions together: without the places a run is slower, but not by more than they may cost."""
_AT_ONCE = 256
"""Values for one call to the JVM; a share has about a kilobyte."""

Block = tuple[int, int, tuple[str, ...]]
"""Begin and end of a block in its file, in bytes, and the hosts that have it."""


def rows_of(spark: SparkSession, shares: Sequence[Share], hosts: Sequence[Sequence[str]]) -> DataFrame:
    """The packed rows of all shares, one task for each; ``hosts`` are those that Spark should prefer for it.

    Tasks whose shares have as many hosts are neighbours, those with the most hosts first.
    """
    context: Any = spark.sparkContext
    session: Any = spark._jsparkSession
    jvm = context._jvm
    by_count: dict[int, list[tuple[Share, Sequence[str]]]] = {}
    for share, names in zip(shares, hosts, strict=True):
        by_count.setdefault(len(names), []).append((share, names))
    rdds = jvm.java.util.ArrayList()
    tag = context._jsc.emptyRDD().classTag()
    for count, some in sorted(by_count.items(), reverse=True):
        values = _seq(jvm, (pickle.dumps(share) for share, _ in some))
        if count:
            names_of = _seq(jvm, (name for _, names in some for name in names)).grouped(count).toSeq()
            rdds.add(context._jsc.sc().makeRDD(values.zip(names_of), tag))
        else:
            rdds.add(context._jsc.sc().parallelize(values, len(some), tag))
    rdd = context._jsc.sc().union(jvm.PythonUtils.toSeq(rdds), tag)
    frame = session.createDataset(rdd, jvm.org.apache.spark.sql.Encoders.BINARY()).toDF()
    return DataFrame(frame, spark).mapInArrow(_read, PACKED_SCHEMA)


def _seq(jvm: Any, values: Iterator[bytes | str]) -> Any:
    """A Scala sequence of values. They are sent some hundred at a time, because each call takes a fraction of a ms."""
    found = jvm.java.util.ArrayList()
    unpickler = jvm.net.razorvine.pickle.Unpickler()
    while some := list(islice(values, _AT_ONCE)):
        found.addAll(unpickler.loads(pickle.dumps(some, protocol=4)))
    return jvm.PythonUtils.toSeq(found)


def _read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for data in batch["value"].to_pylist():
            yield from packed_rows(pickle.loads(data))


def hosts_of(spark: SparkSession, shares: Sequence[Share], say: Callable[[str], None]) -> list[tuple[str, ...]]:
    """The hosts that hold most of the bytes of each share; none for a share whose storage has no places."""
    asked = _Blocks(spark)
    blocks: dict[str, list[Block]] = {}
    found: list[tuple[str, ...]] = []
    until = time.monotonic() + _ASKING_S_MAX
    for share in shares:
        split = share.task.split if isinstance(share, LogShare) else None
        if split is None or split.segment.path.partition("://")[0] not in _TELL:
            found.append(())
            continue
        path = split.segment.path
        try:
            if path not in blocks:
                if time.monotonic() > until:
                    say(f"the places of {len(blocks)} files took {_ASKING_S_MAX:.0f} s; tasks of others run anywhere")
                    return [*found, *((),) * (len(shares) - len(found))]
                assert isinstance(share, LogShare)
                blocks[path] = asked.of(path, split.segment.size, share.settings.storage)
        except Exception as error:  # Py4J's, of whatever Hadoop raises, or fsspec's
            say(f"{path}: the machines of its blocks are not known ({_reason(error)}); tasks run anywhere")
            return [()] * len(shares)
        found.append(most_bytes(blocks[path], split.begin, split.stop))
    return found


def _reason(error: Exception) -> str:
    """What Java says, in a line: Py4J has it behind a line of its own, with a colon before it."""
    lines = str(error).splitlines() or [type(error).__name__]
    line = next((line for line in lines if line.startswith(": ")), lines[0]).removeprefix(": ")
    return error_line(Exception(line))


def most_bytes(blocks: Iterable[Block], begin: int, stop: int) -> tuple[str, ...]:
    """At most three hosts with the most bytes of the range, the fullest first; equal ones by name.

    >>> most_bytes([(0, 100, ("a", "b")), (100, 200, ("b", "c"))], 80, 150)
    ('b', 'c', 'a')
    """
    held: dict[str, int] = {}
    for first, end, hosts in blocks:
        size = min(end, stop) - max(first, begin)
        for host in hosts if size > 0 else ():
            held[host] = held.get(host, 0) + size
    return tuple(sorted(held, key=lambda host: (-held[host], host))[:_HOSTS_MAX])


class _Blocks:
    """Asks Hadoop's client, in the driver's JVM, for the blocks of files."""

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._jvm, self._settings = context._jvm, context._jsc.hadoopConfiguration()
        self._systems: dict[tuple[str, str], Any] = {}

    def of(self, path: str, size: int, storage: str) -> list[Block]:
        """The blocks of a file of ``size`` bytes."""
        if path.startswith("webhdfs://"):
            return _by_http(path, size, storage)
        place = self._jvm.org.apache.hadoop.fs.Path(path)
        locations = self._system(path, place, storage).getFileBlockLocations(place, 0, size)
        return [(one.getOffset(), one.getOffset() + one.getLength(), tuple(one.getHosts())) for one in locations]

    def _system(self, path: str, place: Any, storage: str) -> Any:
        """The file system, as the user that ``--storage`` names, if it does."""
        key = "/".join(path.split("/")[:3]), storage
        if key not in self._systems:
            user = _user(storage)
            if user:
                get = self._jvm.org.apache.hadoop.fs.FileSystem.get
                self._systems[key] = get(place.toUri(), self._settings, user)
            else:
                self._systems[key] = place.getFileSystem(self._settings)
        return self._systems[key]


def _by_http(path: str, size: int, storage: str) -> list[Block]:
    """The blocks by WebHDFS. Hadoop's client in PySpark cannot ask for them: a class that it needs is not shipped."""
    answer = file_system(path, storage)._call("GETFILEBLOCKLOCATIONS", path=path, offset=0, length=size).json()
    blocks = answer["BlockLocations"]["BlockLocation"]
    return [(one["offset"], one["offset"] + one["length"], tuple(one["hosts"])) for one in blocks]


def _user(storage: str) -> str:
    options: Mapping[str, Any] = json.loads(storage or "{}")
    return str(options.get("user") or "")
