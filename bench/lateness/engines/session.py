"""Starts Spark without a UI and without log lines, on the loopback address; no folder or process is left behind.

Java is looked for first: without it, Spark's own message is a stack trace.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.lateness.engines.ending import held, terminated

__all__ = [
    "JavaMissingError",
    "SparkStartError",
    "is_brief",
    "java_version",
    "need_java",
    "package_zip",
    "spark_session",
]

JAVA_MAJORS = (17, 21)
_SHIPPED = ("bench", "remoting", "store")
"""The packages that executors import: `bench.lateness`, and what it reads the spill store with."""
_SHORT_RUN = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
"""Java settings for a process that lives for seconds."""
_BRIEF_BYTES_MAX = 4 << 30
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %m%n
logger.window.name = org.apache.spark.sql.catalyst.expressions
logger.window.level = error
"""


_SAID = re.compile(r'(?:Exception in thread "[^"]*" |spark: |Error: |: )(?:[\w.$]+(?:Exception|Error): )?(.+)')
"""A line of Java's or of Spark's with a reason."""


class SparkStartError(Exception):
    """Spark does not start with these settings; the text has master and reason."""


class JavaMissingError(Exception):
    """There is no Java that Spark runs on; the text says how to get one."""


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")


def java_version(text: str) -> int | None:
    """The major version in the output of ``java -version``.

    >>> java_version('openjdk version "17.0.15" 2025-04-15'), java_version('java version "1.8.0_381"')
    (17, 8)
    """
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else None


def need_java() -> int:
    """The major version of the Java that Spark will use. Raises JavaMissingError unless it is 17 or 21."""
    install = "apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
    java = _java()
    if java is None:
        raise JavaMissingError(
            f"the lateness report runs on Spark, which needs Java 17 or 21; none was found: {install}"
        )
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        raise JavaMissingError(f"{java} cannot be started ({error.strerror}): {install}") from error
    major = java_version(done.stderr + done.stdout)
    if major not in JAVA_MAJORS:
        raise JavaMissingError(f"Spark needs Java 17 or 21; {java} is version {major}: {install}")
    return major


def package_zip(folder: Path) -> Path:
    """Pack the modules that executors need into a zip, because executors do not have our packages. Raises OSError."""
    root = Path(__file__).resolve().parents[3]
    place = folder / "timewheel_lateness.zip"
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in _SHIPPED:
            for path in sorted((root / package).rglob("*.py")):
                archive.write(path, path.relative_to(root).as_posix())
    return place


def is_brief(master: str, log_bytes: int, follows: bool) -> bool:
    """Whether a run is so short that Java should neither optimize nor collect garbage in parallel.

    True for a small log, read once, with a local master.

    >>> is_brief("local[*]", 1 << 30, False), is_brief("local[*]", 1 << 40, False), is_brief("yarn", 1 << 30, False)
    (True, False, False)
    """
    return re.match(r"local(\[|$)", master) is not None and log_bytes <= _BRIEF_BYTES_MAX and not follows


def _settings(folder: Path, master: str, memory: str, partitions: int, brief: bool) -> dict[str, str]:
    java = " ".join(
        (
            *(_SHORT_RUN if brief else ()),
            f"-Dlog4j2.configurationFile=file:{folder / 'log4j2.properties'}",
            f"-Dderby.system.home={folder}",
            "-Djava.net.preferIPv4Stack=true",
        )
    )
    local = master.startswith("local")
    # NumPy works on the rows and Spark on a few sums: compiling code for these would take longer than it saves.
    compiled = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"} if brief else {}
    values = compiled | {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": java,
        "spark.local.dir": str(folder / "scratch"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.port.maxRetries": "64",
    }
    if local:
        values |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    return values


@contextmanager
def spark_session(
    master: str = "local[*]",
    *,
    memory: str = "2g",
    partitions: int = 8,
    settings: Mapping[str, str] | None = None,
    brief: bool = False,
) -> Iterator[Any]:
    """A Spark session for one run. At the end it is stopped and its temporary folder removed.

    ``brief``: a short run (`is_brief`). Raises JavaMissingError without Java, SparkStartError if Spark does not start.
    """
    need_java()
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from bench.lateness.engines.source import CommitLogSource

    with ExitStack() as ends:
        with held():
            folder = Path(tempfile.mkdtemp(prefix="timewheel-spark-"))
            ends.callback(shutil.rmtree, folder, ignore_errors=True)
            (folder / "scratch").mkdir()
            (folder / "log4j2.properties").write_text(_LOGGING)
            logging.getLogger("py4j").setLevel(logging.ERROR)
            ends.callback(_set_environment, dict(os.environ))
            _prepare_environment(master, folder)
            builder = SparkSession.builder.master(master).appName("timewheel lateness")
            for name, value in {**_settings(folder, master, memory, partitions, brief), **(settings or {})}.items():
                builder = builder.config(name, value)
            with _quiet_start(folder, master):
                spark = builder.getOrCreate()
            ends.callback(_stop, spark)
            spark.sparkContext.setLogLevel("ERROR")
            spark.sparkContext.addPyFile(str(package_zip(folder)))
            spark.dataSource.register(CommitLogSource)
        try:
            yield spark
        except PySparkException as error:
            error.add_note(str(error))  # it asks Java for its text, and Java ends
            raise


def _prepare_environment(master: str, folder: Path) -> None:
    """Set what Spark's launcher reads only from the environment."""
    if master.startswith("local"):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", " ".join(_SHORT_RUN))
    if master.startswith("local-cluster"):
        os.environ["SPARK_HOME"] = str(_spark_home(folder))


def _set_environment(kept: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(kept):
        del os.environ[name]
    os.environ.update(kept)


def _spark_home(folder: Path) -> Path:
    """A home of links to Spark's parts: the workers of a local cluster write their folders beside these."""
    import pyspark

    home = folder / "home"
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    return home


@contextmanager
def _quiet_start(folder: Path, master: str) -> Iterator[None]:
    """Send the launcher's first lines, which no setting silences, to a file; if the start fails, take the reason from
    it."""
    sys.stderr.flush()
    saved = os.dup(2)
    path = folder / "start.log"
    with open(path, "wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    except Exception as error:  # PySpark's, Py4J's, or of a class that Java's was turned into
        if terminated():
            raise
        said = f"{path.read_text(errors='replace')}\n{error}"
        raise SparkStartError(f"--master {master}: Spark does not start: {_start_reason(said)}") from error
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def _start_reason(said: str) -> str:
    """The reason in the lines of a start that failed.

    >>> _start_reason('WARNING: modules\\nException in thread "main" org.apache.spark.SparkException: No.\\n\\tat x')
    'No.'
    """
    lines = [line for line in said.splitlines() if line.strip()]
    found = next(filter(None, map(_SAID.match, lines)), None)
    return found[1].strip() if found else lines[-1].strip()


def _stop(spark: Any) -> None:
    """Stop Spark and end the Java process, too, so that the next session starts with its own settings.

    A signal to the process group may have ended Java before; errors of the calls to it are ignored.
    """
    from pyspark import SparkContext

    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # Py4J writes its tracebacks to the root logger
    try:
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            spark.stop()
    finally:
        logging.disable(before)
    gateway = SparkContext._gateway
    if gateway is None:
        return
    process = getattr(gateway, "proc", None)
    with suppress(Exception):
        gateway.shutdown()
    if process is not None:
        process.stdin.close()
        process.wait(timeout=60)
    SparkContext._gateway = None
    SparkContext._jvm = None
