"""The profile reads threads by name, and tells kinds of code apart."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from bench.running.named import name_threads
from bench.workloads.profile import read_threads
from bench.workloads.samples import code_of, native_modules, shares_of


def test_threads_have_their_names_for_the_operating_system() -> None:
    begin, end = threading.Event(), threading.Event()

    def work() -> None:
        begin.set()
        end.wait()

    own = Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text()
    thread = threading.Thread(target=work, name="delay-sweeper with a long name")
    thread.start()
    try:
        begin.wait()
        name_threads()
        found = read_threads(os.getpid())
    finally:
        end.set()
        thread.join()
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(own.strip())
    assert "delay-sweeper w" in found, "fifteen characters"
    usage = found["loop"]
    assert usage["user"] > 0
    assert usage["touches"] > 0
    assert usage["switches"] > 0
    assert usage.keys() == {"user", "system", "ready", "touches", "switches"}


NATIVE = "/x/3fdb__mypyc.cpython-311-x86_64-linux-gnu.so"
MODULES = native_modules(
    ["remoting/messages/record.py", "store/log/recent.py", "broker/net/connection.py", "remoting/connection.py"]
)


def sample(thread: str, *frames: tuple[str, str]) -> str:
    return f"{thread} \n" + "".join(f"\t    7f00aa11 {symbol} ({place})\n" for symbol, place in frames) + "\n"


def test_samples_of_all_kinds() -> None:
    python = "_PyEval_EvalFrameDefault", "/usr/bin/python3.11"
    encode, received = ("CPyDef_record___encode", NATIVE), ("CPyDef_net___connection___Connection___ready", NATIVE)
    text = (
        sample("loop", encode, python, received)
        + sample("loop", ("do_syscall_64", "[kernel.kallsyms]"), ("sendto", "/lib/libc.so.6"), received, python)
        + sample("loop", ("PyDict_GetItem", "/usr/bin/python3.11"), ("CPyPy_recent___put", NATIVE), received)
        + sample("delay-sweeper w", ("[unknown]", "/x/numpy/_core/_multiarray_umath.cpython-311.so"), python)
        + sample("a name with (brackets)", ("memcpy", "/usr/lib/x86_64-linux-gnu/libc.so.6"), ("CPy_DecRef", NATIVE))
        + "\nno sample\n"
    )
    third = 1 / 3
    shares = shares_of(text, MODULES)
    assert shares.by_code == {
        ("loop", "our native code"): third,
        ("loop", "the kernel"): third,
        ("loop", "the interpreter"): third,
        ("delay-sweeper w", "NumPy"): 1.0,
        ("a name with (brackets)", "the C library"): 1.0,
    }
    assert shares.by_stage == {
        ("loop", "remoting/messages"): third,
        ("loop", "broker/net"): third,
        ("loop", "store/log"): third,
        ("delay-sweeper w", "Python"): 1.0,
        ("a name with (brackets)", "Python"): 1.0,
    }
    assert code_of("crc32_gzip_refl_by8", "/x/isal/isal_zlib.cpython-311.so") == "checksums"
    assert code_of("", "/x/orjson.so") == "other libraries"


def test_a_pure_build_has_no_stages() -> None:
    shares = shares_of(sample("loop", ("_PyEval_EvalFrameDefault", "/usr/bin/python3.11")), {})
    assert shares.by_code == {("loop", "the interpreter"): 1.0}
    assert shares.by_stage == {}
