"""Metrics of an instance for Prometheus. Needs the extra ``http``, and is loaded only if it is used."""
