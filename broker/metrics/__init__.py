"""Metrics for Prometheus, under the names of Apache's exporter: docs/metrics.md."""
