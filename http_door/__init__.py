"""The HTTP server of brokers and service instances, in a thread of its own. Needs the extra ``http``."""
