"""The HTTP door: metrics, health, the API of pending messages, the page. Needs the extra ``http``: docs/http.md."""
