"""Pages of measurements: one HTML text each, with its pictures inside, that needs no network.

Everything below is pure: figures in, text out. The modules in `charts` draw; its `canvas` turns one drawing into inline
SVG. They load matplotlib when something is drawn. `pieces` has the sections of the pages and the HTML around the
pictures. `lateness_page` and `bench_page` compose their pages. ``python -m bench.report DIR`` draws the page of a
folder again.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["ReportError", "write_report"]


class ReportError(Exception):
    """A page cannot be drawn; the text says why and what to do."""


def write_report(folder: Path) -> Path:
    """Draw the page of a result folder into it, ``report.html``, and return its path.

    The folder is one of ``timewheel lateness --out`` or of ``timewheel bench --out``. Raises ReportError if it is
    neither, or if what draws (matplotlib) is not installed; OSError if the page cannot be written.
    """
    from bench.figures.results import read
    from bench.lateness.results.result import SUMMARY, ResultError, read_result
    from bench.report import bench_page, lateness_page

    path = folder / lateness_page.NAME
    try:
        if (folder / SUMMARY).exists():
            lateness_page.write(read_result(folder), path)
        elif (folder / "results.json").exists():
            bench_page.write(read(folder / "results.json"), path)
        else:
            raise ReportError(f"{folder} is no result: it has neither {SUMMARY} nor results.json")
    except ModuleNotFoundError as error:
        raise ReportError(
            f"no report: {error.name} is not installed: pip install 'rocketmq-timewheel[bench]'"
        ) from error
    except (ResultError, ValueError) as error:
        raise ReportError(str(error)) from error
    return path
