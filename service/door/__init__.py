"""The HTTP door of an instance: health, metrics, the API of what waits, the page. Needs the extra ``http``."""
