"""Spans of delayed messages for OpenTelemetry: loaded by name, and only if `timewheelTraceEndpoint` asks for them."""
