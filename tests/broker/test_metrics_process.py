"""Metrics and a real Prometheus: promtool's opinion, a scrape, queries that give what the log gives; shipped files."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bench.peers.ports import free_port
from bench.peers.processes import Child
from bench.plain_lateness import delivered
from tests.broker.test_metrics import World, lived
from tests.support.cache import MissingToolError
from tests.support.door import ask
from tests.support.need import need
from tests.support.ours import OurBroker
from tests.support.scrape import parse
from tests.support.wait import wait_until
from timewheel_client import Producer

pytestmark = pytest.mark.process

DOCS = Path(__file__).parents[2] / "docs" / "metrics"
DASHBOARD, ALERTS = DOCS / "dashboard.json", DOCS / "alerts.yml"
NOT_OURS = {"up", "ALERTS"}
WORDS = {"sum", "max", "min", "rate", "increase", "topk", "sort", "time", "by", "on", "and", "le", "histogram_quantile"}


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise MissingToolError(f"{name} not found: apt install prometheus")
    return found


def expressions() -> list[str]:
    """Every query of the dashboard and the rules."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel["targets"]]
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    found += [variable["query"]["query"] for variable in variables if variable["type"] == "query"]
    rules = ALERTS.read_text()
    return found + re.findall(r"expr: (?:>-\n)?((?:.|\n)*?)\n +(?:for|labels):", rules)


def test_every_metric_of_the_dashboard_and_the_rules_exists(tmp_path: Path) -> None:
    world = World(tmp_path / "store")
    exposed = lived(world)
    world.rig.close()
    names = {f"{name}{end}" for name in exposed for end in ("", "_bucket", "_count", "_sum")}
    queries = expressions()
    assert len(queries) > 25
    used = set()
    for query in queries:
        used |= set(re.findall(r"\b((?:timewheel|rocketmq)_\w+)", query))
    assert used - names == set()
    assert len(used) > 20


CORE_PANELS = {"stat", "heatmap", "timeseries", "bargauge", "table", "row", "text", "gauge", "barchart", "piechart"}
"""Panels that every Grafana since 9 has without a plug-in."""
MAY_BE_EMPTY = ("consumer_lag", "put_failures", "commands_total")
"""What has no series before there is a consumer, a refused delivery, a command."""


def test_the_dashboard_is_what_grafana_reads() -> None:
    """What its JSON model asks for: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/."""
    model = json.loads(DASHBOARD.read_text())
    assert 36 <= model["schemaVersion"] <= 41
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", model["uid"])
    assert "id" not in model, "Grafana gives the number; one of another installation overwrites a foreign dashboard"
    variables = {one["name"]: one for one in model["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels = model["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["type"] in CORE_PANELS, panel["type"]
        assert panel["title"]
        assert panel["datasource"] == source
        at = panel["gridPos"]
        assert 0 <= at["x"] < at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, f"{panel['title']} covers another panel"
        taken |= cells
        names = [target["refId"] for target in panel["targets"]]
        assert len(set(names)) == len(names)
        assert {"defaults", "overrides"} <= panel["fieldConfig"].keys()
        for target in panel["targets"]:
            assert target.get("datasource", source) == source
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval", "__range", "__interval"}
            assert used <= variables.keys()
            if panel["type"] == "heatmap":
                assert (target["format"], panel["options"]["calculate"]) == ("heatmap", False)
            if panel["type"] == "table":
                assert (target["format"], target["instant"]) == ("table", True)


def test_promtool_accepts_the_rules() -> None:
    promtool = need(lambda: program("promtool"))
    checked = subprocess.run([promtool, "check", "rules", str(ALERTS)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "8 rules found" in checked.stdout


def test_promtool_complains_of_apaches_names_only(tmp_path: Path) -> None:
    promtool = need(lambda: program("promtool"))
    world = World(tmp_path / "store")
    lived(world)
    text = world.exporter.text().decode()
    world.rig.close()
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
    complaints = [line for line in checked.stderr.splitlines() if line]
    wrong = [
        line
        for line in complaints
        if not re.fullmatch(r'rocketmq_\w+_milliseconds use base unit "seconds" instead of "milliseconds"', line)
    ]
    assert wrong == []
    bad = subprocess.run([promtool, "check", "metrics"], input="a_count 1\nx 2\n", capture_output=True, text=True)
    assert bad.returncode != 0


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[int]:
    """A real Prometheus that scrapes a port every second; answers its own."""
    binary, port = need(lambda: program("prometheus")), free_port()
    folder.mkdir()
    (folder / "alerts.yml").write_text(ALERTS.read_text())
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [alerts.yml]\nscrape_configs:\n"
        f"- job_name: timewheel\n  static_configs: [{{targets: ['127.0.0.1:{target}']}}]\n"
    )
    command = [
        *(binary, "--config.file=prometheus.yml", "--storage.tsdb.path=data"),
        *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"),
    ]
    child = Child(command, folder, folder / "prometheus.log")
    try:
        yield port
    finally:
        child.terminate()


def query(port: int, expression: str) -> list[Any]:
    try:
        answer = ask(port, "/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
    except OSError:
        return []
    return list(answer.json["data"]["result"]) if answer.status == 200 else []


def filled_in() -> list[str]:
    """The queries of the dashboard's panels as Grafana sends them: all brokers, a short time."""
    found = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            expression = re.sub(r"\$(cluster|node|path)\b", ".+", target["expr"])
            found.append(expression.replace("$__rate_interval", "1m"))
    return found


def without_data(port: int) -> list[str]:
    """Those that give nothing and should; a rate needs two scrapes."""
    return [
        expression
        for expression in filled_in()
        if not any(name in expression for name in MAY_BE_EMPTY) and not query(port, expression)
    ]


def value(port: int, expression: str) -> float:
    found = query(port, expression)
    return float(found[0]["value"][1]) if found else -1.0


def wait_value(port: int, expression: str, wanted: float) -> None:
    """A scrape that takes a busy machine longer than a second fails, and hides all series until the next one."""
    wait_until(lambda: value(port, expression) == wanted, 60, f"{expression} = {wanted:g}")


def wait_rows(port: int, expression: str) -> list[Any]:
    """The answer to a query, as soon as it has one."""
    rows: list[Any] = []

    def asked() -> list[Any]:
        rows[:] = query(port, expression)
        return rows

    wait_until(asked, 60, f"an answer to {expression}")
    return rows


async def send(namesrv: str, count: int) -> None:
    async with Producer(namesrv) as producer:
        began = time.monotonic()
        await producer.send("Far", b"x", delay=timedelta(hours=1))
        # A first send, as a measure of the machine: what is due when it comes is an ordinary message.
        lead = timedelta(seconds=max(0.2, 10 * (time.monotonic() - began)))
        for number in range(count):
            await producer.send("Timed", b"x" * 100, delay=lead + timedelta(milliseconds=5 * number))


def test_a_real_prometheus_gives_the_figures_of_the_log(tmp_path: Path) -> None:
    need(lambda: program("prometheus"))
    metrics = free_port()
    broker = OurBroker(
        tmp_path / "ours", {"metricsExporterType": "PROM", "metricsPromExporterPort": str(metrics)}
    ).start()
    try:
        asyncio.run(send(broker.namesrv, 200))
        with prometheus(tmp_path / "prometheus", metrics) as port:
            wait_value(port, "sum(timewheel_lateness_seconds_count)", 200)
            wait_value(port, 'up{job="timewheel"}', 1)
            wait_value(port, "sum(rocketmq_timer_enqueue_total)", 201)
            wait_value(port, 'rocketmq_timer_dequeue_total{topic="Timed"}', 200)
            wait_value(port, "sum(timewheel_early_total)", 0)
            wait_value(port, "sum(timewheel_pending_messages)", 1)
            late_s = float(wait_rows(port, "sum(timewheel_lateness_seconds_sum)")[0]["value"][1])
            within = {
                float(row["metric"]["le"]): float(row["value"][1])
                for row in wait_rows(port, "sum by (le) (timewheel_lateness_seconds_bucket)")
            }
            alerts = {row["metric"]["alertname"] for row in query(port, 'ALERTS{alertstate="firing"}')}
            assert "TimewheelEarlyDelivery" not in alerts
            wait_until(lambda: not without_data(port), 60, "that each query of the dashboard has data")
    finally:
        broker.stop()
    lates_ms = [store_ms - due_ms for _, due_ms, store_ms in delivered(broker.store / "commitlog")]
    assert len(lates_ms) == 200
    assert sum(lates_ms) == pytest.approx(late_s * 1000)
    for bound_s, number in within.items():
        assert number == sum(late <= bound_s * 1000 for late in lates_ms), bound_s


def test_both_ports_of_a_broker_have_the_same_names(tmp_path: Path) -> None:
    http, metrics = free_port(), free_port()
    settings = {"metricsExporterType": "PROM", "metricsPromExporterPort": str(metrics)}
    broker = OurBroker(tmp_path / "ours", {**settings, "httpListen": f"127.0.0.1:{http}"}).start()
    try:
        found = [set(parse(ask(port, "/metrics").body.decode())) for port in (http, metrics)]
        assert found[0] == found[1]
        assert len(found[0]) > 40
    finally:
        broker.stop()
