"""The HTTP door of an instance: health, metrics, the API for pending messages, the page. Needs the extra ``http``."""
