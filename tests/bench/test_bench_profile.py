"""The profile reads threads by name, and tells kinds of code apart."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from bench.running.named import name_threads
from bench.workloads.profile import code_of, read_threads, shares_of


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


def test_samples_of_all_kinds() -> None:
    text = """\
loop  7f00aa11 CPyDef_record___encode (/x/3fdb__mypyc.cpython-311-x86_64-linux-gnu.so)
loop  ffffffff81 do_syscall_64 ([kernel.kallsyms])
loop  55d0aa PyDict_GetItem (/usr/bin/python3.11)
delay-sweeper w  7faa [unknown] (/x/numpy/_core/_multiarray_umath.cpython-311.so)
a name with (brackets)  7faa memcpy (/usr/lib/x86_64-linux-gnu/libc.so.6)

no sample
"""
    third = 1 / 3
    assert shares_of(text) == {
        ("loop", "our native code"): third,
        ("loop", "the kernel"): third,
        ("loop", "the interpreter"): third,
        ("delay-sweeper w", "NumPy"): 1.0,
        ("a name with (brackets)", "the C library"): 1.0,
    }
    assert code_of("crc32_gzip_refl_by8", "/x/isal/isal_zlib.cpython-311.so") == "checksums"
    assert code_of("", "/x/orjson.so") == "other libraries"
